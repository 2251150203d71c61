"""Opens and closes the HTTP front door: its port, its server, and what is let finish at the end."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from twostep.core.errors import ConfigError
from twostep.router.admission.in_flight import Admission
from twostep.router.front.http.server import HttpServer


@contextmanager
def listen(host: str, port: int, *, reuse_port: bool = False) -> Iterator[socket.socket]:
    """Yield a bound socket; with `reuse_port` others may bind its port. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        try:
            listener.bind((host, port))
        except OSError as cause:
            raise cannot_listen(host, port, cause) from cause
        listener.setblocking(False)
        yield listener


def cannot_listen(host: str, port: int, cause: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port}: {cause.strerror or cause}; choose another host or port")


async def run_http(server: HttpServer, listener: socket.socket, stop: asyncio.Event, admission: Admission) -> None:
    """Serve until `stop` is set, then let the requests in flight end, for the configured time at most."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        admission.is_closed = True
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        serving.cancel()
