"""A worker among others: tells them how it is, and its clients how all of them are."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from twostep.core.errors import ServingError, UnknownRequest
from twostep.router.front.http.edge import on_serving_error
from twostep.router.front.http.server import HttpServer
from twostep.router.front.http.state_pages import StatePages, state_routes
from twostep.router.front.readiness import Readiness
from twostep.router.workers.joint_pages import joint_metrics, joint_readiness, latest_story
from twostep.router.workers.siblings import Siblings

log = logging.getLogger(__name__)

LOOK_S = 0.1
WAIT_S = 30.0
SERVER: Any = {"lifespan": "off", "log_config": None, "log_level": logging.ERROR, "timeout_graceful_shutdown": 1}


class MultiWorker:
    """Of the worker `number`, which has been started `num_starts` times."""

    is_shared = True

    def __init__(self, siblings: Siblings, number: int, num_starts: int) -> None:
        self.num_starts = num_starts
        self._siblings = siblings
        self._number = number

    def pages(self, own: StatePages) -> StatePages:
        return JointPages(own, self._siblings, self._number)

    @asynccontextmanager
    async def telling(self, own: StatePages) -> AsyncIterator[None]:
        routes = [Route("/health", _health), *state_routes(own)]
        app = Starlette(routes=routes, exception_handlers={ServingError: on_serving_error})
        server = HttpServer(uvicorn.Config(app, **SERVER), None)
        path = self._siblings.socket_of(self._number)
        # An earlier life may have left it behind.
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.serve(sockets=[listener]))
                try:
                    yield
                finally:
                    server.should_exit = True

    async def until_needed(self, readiness: Readiness, stop: asyncio.Event) -> None:
        """The others do not count this worker before it listens. One that is of no use for long had better be seen."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not (readiness.is_ready or stop.is_set()) and await self._others_can_serve():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    def opened(self, addresses: Mapping[str, str]) -> None:
        log.info("worker listens", extra=dict(addresses))
        # Whoever has started this worker waits for that line.
        print(json.dumps(addresses), flush=True)

    async def _others_can_serve(self) -> bool:
        answers = await self._siblings.ask_all("/ready")
        return any(answer is not None and answer.is_success for answer in answers.values())


class JointPages:
    """The StatePages of all workers together."""

    def __init__(self, own: StatePages, siblings: Siblings, number: int) -> None:
        self._own = own
        self._siblings = siblings
        self._number = number

    async def ready(self, request: Request) -> Response:
        own = await self._own.ready(request)
        others = await self._siblings.ask_all("/ready")
        told = {number: answer.json() if answer else None for number, answer in others.items()}
        report = joint_readiness({self._number: json.loads(bytes(own.body)), **told})
        return JSONResponse(report, status_code=200 if report["ready"] else 503)

    async def metrics(self, request: Request) -> Response:
        own = await self._own.metrics(request)
        others = await self._siblings.ask_all("/metrics")
        pages = {self._number: bytes(own.body), **{number: one.content for number, one in others.items() if one}}
        return Response(joint_metrics(dict(sorted(pages.items()))), media_type=CONTENT_TYPE_LATEST)

    async def explanation(self, request: Request) -> Response:
        others = await self._siblings.ask_all(f"/requests/{quote(request.path_params['name'], safe='')}")
        stories: list[Any] = [one.json() for one in others.values() if one is not None and one.status_code == HTTPStatus.OK]
        try:
            stories.append(json.loads(bytes((await self._own.explanation(request)).body)))
        except UnknownRequest:
            if not stories:
                raise
        return JSONResponse(latest_story(stories))


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n")
