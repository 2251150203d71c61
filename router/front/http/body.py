"""Reads request bodies, each bounded and all of them together: what clients send is held within one budget."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from twostep.core.errors import QueueFull, TooLarge
from twostep.router.front.request_record import ClientGone


class BodyReader:
    """One body may have `max_body_bytes`, all that are held at once `max_held_bytes`."""

    def __init__(self, *, max_body_bytes: int, max_held_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._num_held_bytes = 0

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the whole body; it counts as held until the block ends.

        Raises TooLarge as soon as it is known to be too large, QueueFull when too much is held already, and ClientGone.
        """
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            raise TooLarge(f"the body may have at most {self._max_body_bytes} bytes, found {announced}")
        body = bytearray()
        try:
            while await self._read_on(body, receive):
                pass
            yield bytes(body)
        finally:
            self._num_held_bytes -= len(body)

    async def _read_on(self, body: bytearray, receive: Receive) -> bool:
        """Take what comes next and return whether there is more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("it left while sending")
        piece = message.get("body", b"")
        if len(body) + len(piece) > self._max_body_bytes:
            raise TooLarge(f"the body may have at most {self._max_body_bytes} bytes, found more")
        if self._num_held_bytes + len(piece) > self._max_held_bytes:
            raise QueueFull(
                f"the bodies of all requests being read may have at most {self._max_held_bytes} bytes", retry_after_s=1.0
            )
        body += piece
        self._num_held_bytes += len(piece)
        return bool(message.get("more_body", False))
