"""Passes every request that Serve's proxy brings on to a router's own HTTP port, and the reply back piece by piece."""

from collections.abc import AsyncIterator, Iterable
from urllib.parse import quote

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from twostep.core.errors import InvalidRequest, NodeUnavailable, ServingError
from twostep.router.front.http.edge import on_serving_error

CONNECT_S = 5.0
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that are about one connection (RFC 9110, 7.6.1)."""
Headers = list[tuple[bytes, bytes]]


class Forwarding:
    """An ASGI application. A client that leaves is left by it: Serve cancels the call, and the connection closes."""

    def __init__(self, address: str, *, reply_s: float) -> None:
        timeout = httpx.Timeout(None, connect=CONNECT_S, read=reply_s)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=f"http://{address}", timeout=timeout, limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] == "websocket":
            # Before it is accepted, that is status 403.
            await send({"type": "websocket.close"})
            return
        try:
            reply = await self._reply(scope, receive)
        except ClientDisconnect:
            return
        except ServingError as error:
            await on_serving_error(Request(scope), error)(scope, receive, send)
            return
        try:
            await send({"type": "http.response.start", "status": reply.status_code, "headers": _end_to_end(reply.headers.raw)})
            async for piece in reply.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await reply.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    async def _reply(self, scope: Scope, receive: Receive) -> httpx.Response:
        """Pass the request on. Raises ServingError, or ClientDisconnect from a client that left before it had sent all."""
        try:
            return await self._http.send(await self._request(scope, receive), stream=True)
        except httpx.InvalidURL as cause:
            raise InvalidRequest(f"the path cannot be passed on: {cause}") from cause
        except httpx.TransportError as cause:
            raise NodeUnavailable(f"the router does not answer: {cause or type(cause).__name__}") from cause

    async def _request(self, scope: Scope, receive: Receive) -> httpx.Request:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        url = httpx.URL(path=quote(path), query=scope["query_string"])
        body = b"".join([piece async for piece in _body(receive)])
        return self._http.build_request(scope["method"], url, headers=_end_to_end(scope["headers"]), content=body)


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start here: the replica does."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
