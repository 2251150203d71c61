"""How the HTTP server ends."""

import asyncio
import socket
import time
from functools import partial

import pytest
from starlette.applications import Starlette

from twostep.core.config import load
from twostep.router.admission.in_flight import Admission
from twostep.router.config import RouterConfig
from twostep.router.front.http.door import listen, run_http
from twostep.router.front.http.server import new_http_server
from twostep.router.metrics import Metrics

pytestmark = pytest.mark.processes


async def test_a_connection_that_is_made_while_the_server_ends_does_not_keep_it() -> None:
    metrics, stop, loop = Metrics(), asyncio.Event(), asyncio.get_running_loop()
    server = new_http_server(Starlette(), load(RouterConfig, overrides=["drain_s=60"]), metrics)
    with listen("127.0.0.1", 0) as listener:
        running = asyncio.create_task(run_http(server, listener, stop, Admission(1, metrics, time.monotonic)))
        async with asyncio.timeout(60):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.001)
            stop.set()
            while listener.fileno() >= 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            accepted, client = socket.socketpair()
            new = partial(
                server.config.http_protocol_class, config=server.config, server_state=server.server_state, app_state={}
            )
            await loop.connect_accepted_socket(new, accepted)
            await running
        client.close()
