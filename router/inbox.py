"""Where one request's events wait for it, in the order in which they came."""

import asyncio
from collections.abc import Callable

from twostep.router.events import Event


class Inbox:
    """For one reader, on one event loop. Bounded: an event beyond `limit` waiting ones is dropped, which is said once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._on_overflow: Callable[[], None] | None = None
        self._events: list[Event] = []
        self._is_filled = asyncio.Event()
        self.has_overflowed = False

    def put(self, event: Event) -> None:
        if len(self._events) < self._limit:
            self._events.append(event)
            self._is_filled.set()
        elif not self.has_overflowed:
            self.has_overflowed = True
            if self._on_overflow:
                self._on_overflow()

    def on_overflow(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the first event has to be dropped."""
        self._on_overflow = tell

    async def take(self) -> list[Event]:
        """Wait for events and return all that are there."""
        await self._is_filled.wait()
        self._is_filled.clear()
        events, self._events = self._events, []
        return events
