"""Addresses, as `host:port`: what one has to look like, and telling where the router listens."""

import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from twostep.core.address_file import write_address_file
from twostep.core.errors import ConfigError
from twostep.core.host_port import join_host_port

log = logging.getLogger(__name__)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return join_host_port(host, port)


def tell_addresses(addresses: Mapping[str, str], path: Path | None) -> None:
    """Write `addresses`, by protocol, as JSON to `path`, then log them. Raises ConfigError when they cannot be written."""
    if path:
        write_address_file(path, addresses)
    log.info("router listens", extra=dict(addresses))


def require_host_and_port(address: str) -> None:
    """Raise ConfigError unless `address` is a `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"node address {address!r}: expected host:port")
