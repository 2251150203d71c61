"""A streamed HTTP reply: starts with its first event, joins events that are ready together, gives up on a stalled client."""

import asyncio

from starlette.types import Send

from twostep.router.request_record import ClientGone

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """For several writers. Every call raises ClientGone when the client takes nothing for `stall_s` seconds."""

    def __init__(self, send: Send, *, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self._turn = asyncio.Lock()
        self.has_started = False

    async def write(self, events: bytes) -> None:
        """Send `events`, whole server-sent events, in one piece."""
        await self._put(events, more_body=True)

    async def end(self, events: bytes = b"") -> None:
        await self._put(events, more_body=False)

    async def _put(self, events: bytes, *, more_body: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_s), self._turn:
                if not self.has_started:
                    self.has_started = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
                await self._send({"type": "http.response.body", "body": events, "more_body": more_body})
        except TimeoutError as cause:
            raise ClientGone(f"it took nothing for {self._stall_s:g} s") from cause
