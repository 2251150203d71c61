"""The pages that tell how the router is: whether it can serve, what it has counted, what became of a request."""

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twostep.core.errors import UnknownRequest
from twostep.router.front.http.explanation import explain
from twostep.router.front.readiness import Readiness
from twostep.router.metrics import Metrics
from twostep.router.requests.history import MAX_STORIES, History


class StatePages(Protocol):
    """Each returns its page, or raises ServingError."""

    async def ready(self, request: Request) -> Response:
        """Whether requests can be served, and by which nodes: 200 or 503."""

    async def metrics(self, request: Request) -> Response:
        """Metrics in Prometheus' text format."""

    async def explanation(self, request: Request) -> Response:
        """Why the request called `name` was served where it was. Raises UnknownRequest."""


class OwnPages:
    """The StatePages of one router."""

    def __init__(self, readiness: Readiness, metrics: Metrics, history: History) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._history = history

    async def ready(self, _: Request) -> Response:
        report = self._readiness.report()
        return JSONResponse(report, status_code=200 if report["ready"] else 503)

    async def metrics(self, _: Request) -> Response:
        self._readiness.update(self._metrics)
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def explanation(self, request: Request) -> Response:
        name = request.path_params["name"]
        story = self._history.find(name)
        if story is None:
            raise UnknownRequest(f"no request {name[:128]!r} is remembered; the latest {MAX_STORIES} are")
        return JSONResponse(explain(story))


def state_routes(pages: StatePages) -> Sequence[Route]:
    return (
        Route("/ready", pages.ready),
        Route("/metrics", pages.metrics),
        Route("/requests/{name:path}", pages.explanation),
    )
