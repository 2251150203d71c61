"""Where one request's events wait for it, in the order in which they came."""

import asyncio
from collections.abc import Callable, Sequence

from twostep.router.nodes.events import Event

AtOnce = Callable[[Sequence[Event]], Sequence[Event]]
"""Takes those of some events for which its task need not be woken; returns the rest."""


class Inbox:
    """For one reader, on one event loop. Bounded: an event beyond `limit` waiting ones is dropped, which is said once.

    With half of that waiting the reader is behind, until it takes them: who fills the inbox should pause.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._on_overflow: Callable[[], None] | None = None
        self._on_turn: Callable[[], None] | None = None
        self._events: list[Event] = []
        self._is_filled = asyncio.Event()
        self._at_once: AtOnce | None = None
        self.has_overflowed = False
        self.is_behind = False

    def put(self, event: Event) -> None:
        if len(self._events) < self._limit:
            self._events.append(event)
            self.wake()
            self._turn(is_behind=len(self._events) > self._limit // 2)
        elif not self.has_overflowed:
            self.has_overflowed = True
            if self._on_overflow:
                self._on_overflow()

    def put_all(self, events: Sequence[Event]) -> None:
        """Put the events of one message; a reader that waits may take some of them on the spot, unless they are too many."""
        if self._at_once and len(events) <= self._limit:
            events = self._at_once(events)
        for event in events:
            self.put(event)

    def wake(self) -> None:
        """Let the reader go on, be it without an event."""
        self._at_once = None
        self._is_filled.set()

    def on_overflow(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the first event has to be dropped."""
        self._on_overflow = tell

    def on_turn(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever the reader falls behind, and when it has caught up."""
        self._on_turn = tell

    async def take(self, at_once: AtOnce | None = None) -> list[Event]:
        """Wait for events and return all that are there; meanwhile `at_once` is offered those of each message."""
        self._at_once = at_once
        try:
            await self._is_filled.wait()
        finally:
            self._at_once = None
        self._is_filled.clear()
        events, self._events = self._events, []
        self._turn(is_behind=False)
        return events

    def _turn(self, *, is_behind: bool) -> None:
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            if self._on_turn:
                self._on_turn()
