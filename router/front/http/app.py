"""The router's HTTP surface: which path is answered by what."""

from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from twostep.core.errors import ServingError, UnknownModel
from twostep.router.front.http.edge import RequestIdMiddleware, on_fault, on_http_exception, on_serving_error
from twostep.router.front.http.openapi import openapi_json
from twostep.router.front.http.state_pages import StatePages, state_routes
from twostep.router.front.model import ServedModel
from twostep.router.front.readiness import Readiness


class Pages:
    """The small pages: what is served here."""

    def __init__(self, model: ServedModel, readiness: Readiness, *, started: int) -> None:
        self._model = model
        self._readiness = readiness
        self._started = started

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._model.names:
            raise UnknownModel(f"model {name[:80]!r} does not exist here; served: {self._model.names[0]!r}", param="model")
        return JSONResponse(self._model_card())

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": _version(), "nodes": self._readiness.versions()})

    async def openapi(self, _: Request) -> Response:
        return Response(openapi_json(_version()), media_type="application/json")

    def _model_card(self) -> dict[str, str | int | None]:
        # Benchmark clients load the tokenizer that `root` names.
        return {
            "id": self._model.names[0],
            "object": "model",
            "created": self._started,
            "owned_by": "twostep",
            "root": self._model.source,
            "max_model_len": self._model.max_model_tokens,
        }


def build_app(endpoints: Mapping[str, ASGIApp], pages: Pages, state: StatePages, cors_origins: Collection[str] = ()) -> ASGIApp:
    """Return the ASGI application; `endpoints` are what is posted to, by path, `cors_origins` whose pages may read it."""
    app = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
            Route("/v1/models", pages.models),
            Route("/v1/models/{name:path}", pages.model),
            Route("/health", pages.health),
            Route("/version", pages.version),
            Route("/openapi.json", pages.openapi),
            *state_routes(state),
        ],
        exception_handlers={ServingError: on_serving_error, HTTPException: on_http_exception, Exception: on_fault},
    )
    app.router.redirect_slashes = False
    return RequestIdMiddleware(_with_cors(app, cors_origins) if cors_origins else app)


def _with_cors(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )


def _version() -> str:
    try:
        return version("twostep")
    except PackageNotFoundError:
        return "not installed"
