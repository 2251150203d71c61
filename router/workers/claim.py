"""Keeps the router's ports for its workers: taken before the first of them starts, and shared with them alone."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from twostep.router.config import RouterConfig
from twostep.router.front.http.door import cannot_listen, listen


@contextmanager
def claimed(config: RouterConfig) -> Iterator[tuple[int, int]]:
    """Hold the HTTP and the gRPC port for the block, and yield their numbers. Raises ConfigError when one cannot be had."""
    with _claim(config.host, config.port) as http, _claim(config.host, config.grpc_port_or_next) as grpc:
        yield http, grpc


@contextmanager
def _claim(host: str, port: int) -> Iterator[int]:
    # Bound, but not listening: the kernel gives it no connections.
    with listen(host, port) as claim, socket.socket(socket.AF_UNIX) as name:
        found: int = claim.getsockname()[1]
        try:
            # Another router of the same user could share the port as our workers do. Only one has this name in the kernel.
            name.bind(f"\0twostep.router {host:.64}:{found}")
        except OSError as cause:
            raise cannot_listen(host, port, cause) from cause
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield found
