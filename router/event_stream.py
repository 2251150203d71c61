"""A streamed HTTP reply: starts with its first event, joins events that are ready together, breaks long silences."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
COMMENT = b": keep-alive\n\n"


class EventStream:
    """For several writers. A call waits while the client takes nothing: its connection's guard ends that."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._last_written = _now()
        self.has_started = False

    async def write(self, events: bytes) -> None:
        """Send `events`, whole server-sent events, in one piece."""
        await self._put(events, more_body=True)

    async def end(self, events: bytes = b"") -> None:
        await self._put(events, more_body=False)

    @asynccontextmanager
    async def kept_alive(self, *, after_s: float) -> AsyncIterator[None]:
        """Write a comment whenever nothing has been written for `after_s` seconds, until the block ends."""
        keeper = asyncio.create_task(self._keep_alive(after_s))
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})

    async def _keep_alive(self, after_s: float) -> None:
        while True:
            await asyncio.sleep(self._last_written + after_s - _now())
            if _now() >= self._last_written + after_s:
                await self.write(COMMENT)

    async def _put(self, events: bytes, *, more_body: bool) -> None:
        async with self._turn:
            if not self.has_started:
                self.has_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await self._send({"type": "http.response.body", "body": events, "more_body": more_body})
            self._last_written = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
