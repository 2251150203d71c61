"""Decides whether one more request may begin: refused before any work, never after."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from twostep.core.clock import Clock
from twostep.core.errors import NoReadyNode, QueueFull, TooLarge
from twostep.core.turnover import HoldMeter, Supply
from twostep.router.metrics import Metrics

RETRY_AFTER_S = 1.0
"""The least that anybody is told to wait, and what is told while no request has ended yet."""
MAX_TOLD = 65536


class Admission:
    """Bounds the requests in flight; closed while the router drains."""

    def __init__(self, max_in_flight: int, metrics: Metrics, clock: Clock) -> None:
        self._max_in_flight = max_in_flight
        self._metrics = metrics
        self._clock = clock
        self._num_in_flight = 0
        self._holds = HoldMeter()
        self._told: deque[tuple[float, int]] = deque()
        """When those who were refused were told to come back, and with how many requests."""
        self._num_told = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_closed = False

    @contextmanager
    def admit(self, num_requests: int = 1) -> Iterator[None]:
        """Hold places for the block.

        Raises QueueFull (429), TooLarge (413) for more than there ever are, NoReadyNode (503) when the router is about to stop.
        """
        if self.is_closed:
            raise NoReadyNode("this router is stopping", retry_after_s=RETRY_AFTER_S)
        if num_requests > self._max_in_flight:
            raise TooLarge(f"at most {self._max_in_flight} requests are served at once, found {num_requests} in one")
        began = self._clock()
        if self._num_in_flight + num_requests > self._max_in_flight:
            limit = f"at most {self._max_in_flight} requests are served at once"
            found = f"{limit}, found {self._num_in_flight} and {num_requests} more"
            raise QueueFull(found, retry_after_s=self._retry_after_s(num_requests, began))
        self._count(num_requests)
        try:
            yield
        finally:
            self._count(-num_requests)
            self._holds.record(num_requests, self._clock() - began)

    def _retry_after_s(self, num_requests: int, now: float) -> float:
        """Return when there will be places, as fast as they come back, for all who are told to come until then as well."""
        while self._told and (self._told[0][0] <= now or len(self._told) >= MAX_TOLD):
            self._num_told -= self._told.popleft()[1]
        self._num_told += num_requests
        places = Supply(self._max_in_flight - self._num_in_flight, self._num_in_flight, self._holds.mean_s)
        wait_s = max(RETRY_AFTER_S, places.wait_s(self._num_told) or 0.0)
        self._told.append((now + wait_s, num_requests))
        return wait_s

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
