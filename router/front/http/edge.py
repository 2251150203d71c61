"""HTTP's side of things: ids in headers, clients that leave, errors as OpenAI's clients read them."""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostep.core.errors import InvalidRequest, ServingError
from twostep.router.front.openai.event import error_body
from twostep.router.front.request_record import ClientGone, new_request_ids

T = TypeVar("T")

IDS = "twostep.request_ids"
PIPE = "twostep.body_pipe"
"""Under these names a request's scope holds its ids, and the short way into its connection where there is one."""


class RequestIdMiddleware:
    """Names every request, and tells the client the name: its own X-Request-Id where it gave a valid one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ids = scope[IDS] = new_request_ids(Headers(scope=scope).get("x-request-id"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = ids.public
            await send(message)

        await self._app(scope, receive, send_with_id)


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Return a request's headers by name; of several with one name the first."""
    return {key.decode("latin-1"): value.decode("latin-1") for key, value in reversed(scope["headers"])}


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it and raise ClientGone as soon as the client leaves."""
    stay = asyncio.timeout(None)
    try:
        async with stay:
            watcher = asyncio.create_task(_end_when_gone(receive, stay))
            try:
                return await work
            finally:
                watcher.cancel()
    except TimeoutError as cause:
        if stay.expired():
            raise ClientGone("it left before the end") from cause
        raise


def error_response(error: ServingError) -> Response:
    headers = {} if error.retry_after_s is None else {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return JSONResponse(error_body(error), status_code=error.http_status, headers=headers)


def on_serving_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ServingError):
        raise error
    return error_response(error)


def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer unknown paths and wrong methods as OpenAI does."""
    if not isinstance(error, HTTPException):
        raise error
    what = HTTPStatus(error.status_code).phrase.lower()
    refusal = InvalidRequest(f"{what}: {request.method} {request.url.path[:256]}")
    body = error_body(refusal)
    body["error"]["code"] = what.replace(" ", "_")
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def on_fault(_: Request, __: Exception) -> Response:
    """Answer an error of our own; the server logs it with its trace."""
    return error_response(ServingError("the router has failed on this request"))


async def _end_when_gone(receive: Receive, stay: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stay.reschedule(asyncio.get_running_loop().time())
