"""Which transports reach other processes, by their names in the configuration."""

from collections.abc import Callable, Mapping

from twostep.core.ids import NodeRef
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.transport import Transport
from twostep.kv_transfer.ucx_transport import UcxTransport

WIRES: Mapping[str, Callable[[NodeRef], Transport]] = {"nixl": NixlTransport, "ucx": UcxTransport}
"""Making one raises ConfigError, in one line, where its library is not installed or cannot start."""
