"""Lets requests through to the nodes when there is room for them, in the order that the admission queue decides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from twostep.core.clock import Clock
from twostep.core.errors import QueueFull
from twostep.core.ids import RequestId
from twostep.core.request import Request
from twostep.router.admission.demand import Capacity, Demand, Entry
from twostep.router.admission.queue import AdmissionQueue, Limits
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Weighing:
    """What the gate asks of others: what a request takes, and what the nodes have."""

    demand: Callable[[Request], Demand]
    capacity: Callable[[], Capacity]


class Gate:
    """The effects around `AdmissionQueue`: waiting, and counting."""

    def __init__(self, weighing: Weighing, config: RouterConfig, metrics: Metrics, clock: Clock) -> None:
        self._weighing = weighing
        self._metrics = metrics
        self._clock = clock
        self._queue = AdmissionQueue(Limits(config.ahead_s, config.queue_s))
        self._waiting: dict[RequestId, asyncio.Event] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits and nobody holds room."""
        return not (self._waiting or self._queue.num_waiting or self._queue.num_admitted)

    @asynccontextmanager
    async def admitted(self, request: Request, *, remaining_s: float) -> AsyncIterator[None]:
        """Hold room for the block, having waited for it. Raises QueueFull (429) when that would take too long."""
        may_go = self._waiting[request.id] = asyncio.Event()
        try:
            await self._until_admitted(request, may_go, remaining_s)
            yield
        finally:
            self._waiting.pop(request.id, None)
            self._queue.leave(request.id, self._clock())
            self._let_in()

    def computed(self, request: RequestId) -> None:
        """The request's first token is there: its prompt is no longer ahead of others."""
        self._queue.computed(request)
        self._let_in()

    async def _until_admitted(self, request: Request, may_go: asyncio.Event, remaining_s: float) -> None:
        arrived = self._clock()
        try:
            self._queue.arrive(self._entry(request, arrived + remaining_s), self._weighing.capacity(), arrived)
        except QueueFull:
            self._metrics.admission_refused.inc()
            raise
        self._let_in()
        await may_go.wait()
        self._metrics.queue_wait.observe(self._clock() - arrived)

    def _let_in(self) -> None:
        for entry in self._queue.admit(self._weighing.capacity(), self._clock()):
            self._waiting[entry.request].set()
        self._metrics.queued.set(self._queue.num_waiting)

    def _entry(self, request: Request, deadline: float) -> Entry:
        level = request.level
        return Entry(
            request.id,
            self._weighing.demand(request),
            deadline,
            priority=level.priority,
            tenant=level.tenant,
            mark=hash((request.prompt, request.cache_salt)),
        )
