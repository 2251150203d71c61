"""Tells where the router listens: in the log, and to whoever waits for a file."""

import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from twostep.core.address_file import write_address_file
from twostep.core.host_port import join_host_port

log = logging.getLogger(__name__)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return join_host_port(host, port)


def tell_addresses(addresses: Mapping[str, str], path: Path | None) -> None:
    """Log `addresses`, by protocol, and write them as JSON to `path`. Raises ConfigError when it cannot be written."""
    log.info("router listens", extra=dict(addresses))
    if path:
        write_address_file(path, addresses)
