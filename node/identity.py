"""Who this node is: an id no other node has, a new incarnation for each process, and the address that peers use."""

import os
import secrets
import socket

from twostep.core.errors import ConfigError
from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.node.config import NodeConfig

WILDCARDS = frozenset({"", "0.0.0.0", "::", "[::]"})


def new_identity(config: NodeConfig) -> NodeRef:
    """Return the node's name for this life; never made of the listening address, which two pods may share."""
    name = config.node_id or os.environ.get("POD_UID") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    return NodeRef(NodeId(name), new_incarnation())


def advertised_host(config: NodeConfig) -> str:
    """Return the host that goes into the addresses given to others. Raises ConfigError when this machine's is not known."""
    if config.advertise_host:
        return config.advertise_host
    return _own_address() if config.host in WILDCARDS else config.host


def _own_address() -> str:
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as cause:
        raise ConfigError(
            f"advertise_host: no address is known for {name}: set it to the address under which peers reach this node"
        ) from cause
    return str(found[0][4][0])
