"""What probes and Prometheus read of a node, over HTTP, from a thread of its own: alive, ready, metrics.

Alive means that the event loop turns. Ready means that the node says so: its model is there and its engine gets on.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from twostep.core.clock import Clock
from twostep.core.errors import ConfigError

PULSE_S = 0.5
"""How often the event loop shows that it turns."""

POLL_S = 0.1
"""How long closing may take."""


Pages = Mapping[str, Callable[[], str]]
NO_PAGES: Pages = {}


class Vitals:
    """What the control thread lets be known. `reason` tells why the node is not ready; empty when it is."""

    def __init__(self, *, stuck_s: float, clock: Clock = time.monotonic) -> None:
        self.reason = "the program starts"
        self._stuck_s = stuck_s
        self._clock = clock
        self._turned_at = clock()

    async def keep_beating(self) -> None:
        while True:
            self._turned_at = self._clock()
            await asyncio.sleep(PULSE_S)

    @property
    def trouble(self) -> str:
        """Why the process should be started anew; empty when it lives."""
        stuck_s = self._clock() - self._turned_at
        return f"the event loop has not turned for {stuck_s:.0f} s" if stuck_s > self._stuck_s else ""


class StatusPage:
    """Listens at once. `pages` are more of them, by path, in JSON. Raises ConfigError when the port is taken."""

    def __init__(self, host: str, port: int, vitals: Vitals, registry: CollectorRegistry, pages: Pages = NO_PAGES) -> None:
        self._vitals = vitals
        self._pages = pages
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = make_server(host, port, self._answer, _Ipv6Server if ":" in host else ThreadingWSGIServer, _Quiet)
        except OSError as cause:
            raise ConfigError(f"metrics_port: cannot listen on {host}:{port}: {cause.strerror}") from cause
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="status-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/health":
                return _say(self._vitals.trouble, start)
            case "/ready":
                return _say(self._vitals.trouble or self._vitals.reason, start)
            case "/metrics":
                page: Iterable[bytes] = self._metrics(environ, start)
                return page
            case path if path in self._pages:
                start("200 OK", [("Content-Type", "application/json")])
                return [self._pages[path]().encode()]
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"known here: " + ", ".join(("/health", "/ready", "/metrics", *self._pages)).encode() + b"\n"]


class _Ipv6Server(ThreadingWSGIServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


def _say(trouble: str, start: Callable[..., Any]) -> list[bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    start(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{trouble or 'ok'}\n".encode()]
