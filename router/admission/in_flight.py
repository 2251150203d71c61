"""Decides whether one more request may begin: refused before any work, never after."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from twostep.core.errors import NoReadyNode, QueueFull
from twostep.router.metrics import Metrics

RETRY_AFTER_S = 1.0


class Admission:
    """Bounds the requests in flight; closed while the router drains."""

    def __init__(self, max_in_flight: int, metrics: Metrics) -> None:
        self._max_in_flight = max_in_flight
        self._metrics = metrics
        self._num_in_flight = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_closed = False

    @contextmanager
    def admit(self, num_requests: int = 1) -> Iterator[None]:
        """Hold places for the block. Raises QueueFull (429), or NoReadyNode (503) when the router is about to stop."""
        if self.is_closed:
            raise NoReadyNode("this router is stopping", retry_after_s=RETRY_AFTER_S)
        if self._num_in_flight + num_requests > self._max_in_flight:
            limit = f"at most {self._max_in_flight} requests are served at once"
            raise QueueFull(f"{limit}, found {self._num_in_flight} and {num_requests} more", retry_after_s=RETRY_AFTER_S)
        self._count(num_requests)
        try:
            yield
        finally:
            self._count(-num_requests)

    async def until_empty(self, *, timeout_s: float) -> None:
        """Wait until nothing is in flight, for `timeout_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()

    def _count(self, change: int) -> None:
        self._num_in_flight += change
        if self._num_in_flight:
            self._is_empty.clear()
        else:
            self._is_empty.set()
        self._metrics.in_flight.set(self._num_in_flight)
