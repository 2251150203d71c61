"""Makes the HTTP server: uvicorn, whose signals are the program's and whose connections are guarded."""

import asyncio
import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from twostep.core.certificates import CertificateFiles
from twostep.router.config import RouterConfig
from twostep.router.front.http.guarded_connection import ClientTimeouts, GuardedConnection
from twostep.router.metrics import Metrics

LAST_WORDS_S = 2
"""How long clients may take to hear that their requests were ended when the time to drain was over."""

CLOSE_EVERY_S = 0.2


class HttpServer(uvicorn.Server):
    """Leaves signals alone: the program's own handlers stop it. Shows a renewed certificate as soon as there is one."""

    def __init__(self, config: uvicorn.Config, certificate: CertificateFiles | None) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._shown = certificate.current() if certificate else None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, GuardedConnection):
                connection.check()
        self._show_renewed_certificate()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.create_task(self._keep_closing())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _keep_closing(self) -> None:
        """uvicorn closes those that idle once: one accepted just before shows up after that, and would be waited for."""
        while True:
            await asyncio.sleep(CLOSE_EVERY_S)
            for connection in tuple(self.server_state.connections):
                connection.shutdown()

    def _show_renewed_certificate(self) -> None:
        if self._certificate and self.config.ssl and self._certificate.current() is not self._shown:
            self._shown = self._certificate.current()
            self._certificate.load_into(self.config.ssl)


def new_http_server(
    app: ASGIApp, config: RouterConfig, metrics: Metrics, certificate: CertificateFiles | None = None
) -> HttpServer:
    """Return a server of `app`, to be given its socket; it speaks TLS where there is a certificate."""
    # Its warnings are about what single clients do, which is counted.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    timeouts = ClientTimeouts(send_s=config.client_send_s, read_s=config.client_stall_s)
    connection = partial(GuardedConnection, timeouts=timeouts, on_ended=lambda why: metrics.connections_ended.labels(why).inc())
    return HttpServer(
        uvicorn.Config(
            app,
            http=cast(type[GuardedConnection], connection),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(config.client_idle_s),
            timeout_graceful_shutdown=math.ceil(config.drain_s) + LAST_WORDS_S,
            ssl_certfile=config.front_tls.certificate if config.front_tls else None,
            ssl_keyfile=config.front_tls.key if config.front_tls else None,
        ),
        certificate,
    )
