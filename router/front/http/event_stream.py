"""A streamed HTTP reply: starts with its first event, joins events that are ready together, breaks long silences."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

from starlette.types import Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
COMMENT = b": keep-alive\n\n"


class BodyPipe(Protocol):
    """The short way into a connection, for a reply that has begun."""

    def write(self, piece: bytes) -> bool:
        """Write a piece of the body, unless that has to wait; returns whether it was written."""


class EventStream:
    """For several writers. `settle` waits while the client takes nothing: its connection's guard ends that."""

    def __init__(self, send: Send, pipe: BodyPipe | None = None) -> None:
        self._send = send
        self._pipe = pipe
        self._turn = asyncio.Lock()
        self._waiting: list[bytes] = []
        self._num_sending = 0
        self._last_written = monotonic()
        self.has_started = False

    def put(self, events: bytes) -> bool:
        """Send `events`, whole server-sent events, in one piece: at once where that can be, else with the next `settle`.

        Returns whether they have been sent.
        """
        # Nothing may overtake what waits, or is being sent.
        is_free = self.has_started and not self._waiting and not self._num_sending
        if is_free and self._pipe and self._pipe.write(events):
            self._last_written = monotonic()
            return True
        self._waiting.append(events)
        return False

    async def settle(self) -> None:
        """Send what waits."""
        if self._waiting:
            await self._send_waiting(more_body=True)

    async def end(self, events: bytes = b"") -> None:
        self._waiting.append(events)
        await self._send_waiting(more_body=False)

    @asynccontextmanager
    async def kept_alive(self, *, after_s: float) -> AsyncIterator[None]:
        """Write a comment whenever nothing has been written for `after_s` seconds, until the block ends."""
        keepers: list[asyncio.Task[None]] = []
        # Most streams are over, or never silent for so long, before they need a task.
        timer = asyncio.get_running_loop().call_later(
            after_s, lambda: keepers.append(asyncio.create_task(self._keep_alive(after_s)))
        )
        try:
            yield
        finally:
            timer.cancel()
            for keeper in keepers:
                keeper.cancel()
                await asyncio.wait({keeper})

    async def _keep_alive(self, after_s: float) -> None:
        while True:
            await asyncio.sleep(self._last_written + after_s - monotonic())
            if monotonic() >= self._last_written + after_s:
                self.put(COMMENT)
                await self.settle()

    async def _send_waiting(self, *, more_body: bool) -> None:
        self._num_sending += 1
        try:
            async with self._turn:
                events, self._waiting = b"".join(self._waiting), []
                if events or not more_body:
                    await self._send_body(events, more_body=more_body)
        finally:
            self._num_sending -= 1

    async def _send_body(self, events: bytes, *, more_body: bool) -> None:
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._send({"type": "http.response.body", "body": events, "more_body": more_body})
        self._last_written = monotonic()
