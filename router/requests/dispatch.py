"""Runs requests on the nodes of one pool, each under its absolute deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from twostep.core.clock import Clock
from twostep.core.errors import Cancelled, DeadlineExceeded, NoReadyNode, ServingError
from twostep.core.ids import NodeRef, RequestId
from twostep.core.request import FinishReason, Request
from twostep.router.admission.gate import Gate, Weighing
from twostep.router.bill import Bill, Intake, Timeline
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.nodes.inbox import Inbox
from twostep.router.nodes.pool import NodePool
from twostep.router.placement.choose import Avoid, Placement
from twostep.router.placement.placer import Errand, Found, Placer
from twostep.router.requests.delivery import TokenSink
from twostep.router.requests.history import History, RequestStory, told
from twostep.router.requests.legs import Legs
from twostep.router.requests.retry_budget import RetryBudget
from twostep.router.requests.run import Outcome, Run
from twostep.router.requests.state import RequestState
from twostep.router.requests.tracing import Tracing


class Dispatch(Protocol):
    """What the front doors ask of the nodes behind it."""

    async def run(self, request: Request, sink: TokenSink, *, intake: Intake, timeout_s: float) -> Outcome:
        """Serve the request; cancelling this ends it on every node. `timeout_s` counts from its arrival.

        Requests of one `session` are placed together where that costs nothing. Raises ServingError.
        """


class Dispatcher:
    """The real one."""

    def __init__(
        self,
        pool: NodePool,
        config: RouterConfig,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self.history = History()
        self._pool = pool
        self._config = config
        self._metrics = metrics
        self._budget = RetryBudget(config.retry_share, config.retry_reserve, clock)
        self._placer = Placer(pool.fleet, pool.prefixes, lambda: pool.typical, config, metrics, clock)
        self._gate = Gate(Weighing(self._placer.demand, pool.fleet.capacity), config, metrics, clock)
        self._limits: set[asyncio.Timeout] = set()
        self._stopped: ServingError | None = None

    async def run(self, request: Request, sink: TokenSink, *, intake: Intake, timeout_s: float) -> Outcome:
        self._budget.note_request()
        clock = asyncio.get_running_loop().time
        story = self.history.begin(request, intake.client_id, age_s=clock() - intake.arrived)
        with self._following(intake, story, lambda: clock() - intake.arrived) as traceparent, told(story):
            outcome = await self._serve(request, sink, intake, timeout_s, story, traceparent)
            story.outcome, story.bill = outcome.finish or FinishReason.STOP, outcome.bill
            return outcome

    async def _serve(
        self,
        request: Request,
        sink: TokenSink,
        intake: Intake,
        timeout_s: float,
        story: RequestStory,
        traceparent: str,
    ) -> Outcome:
        deadline = intake.arrived + timeout_s
        inbox = Inbox(self._config.max_buffered_tokens)
        state = RequestState(request, max_attempts=self._config.max_attempts)
        times = Timeline(intake)
        try:
            async with self._limit(deadline) as limit:
                inbox.on_overflow(lambda: _end_now(limit))
                async with (
                    self._admitted(request, times, deadline),
                    Legs(self._pool, request, inbox, traceparent, arrived=intake.arrived, deadline=deadline) as legs,
                ):
                    errand = Errand.of(request, intake.session)
                    run = Run(
                        *(errand, state, legs, inbox, times, story, sink),
                        nodes=self,
                        metrics=self._metrics,
                        hedge_after_s=self._config.hedge_after_s,
                    )
                    return await run.to_the_end()
        except TimeoutError as cause:
            if inbox.has_overflowed:
                raise Cancelled("the client does not read its tokens") from cause
            if self._stopped:
                raise self._stopped from cause
            raise DeadlineExceeded(f"the request was not done after {timeout_s:g} s") from cause

    @contextmanager
    def _following(self, intake: Intake, story: RequestStory, elapsed_s: Callable[[], float]) -> Iterator[str]:
        """Yield what the nodes are told of the request's trace, nothing where it has none."""
        if self._tracing is None:
            yield ""
            return
        with self._tracing.following(intake.traceparent, story, elapsed_s) as traced:
            yield traced.header() if traced else ""

    def stop(self, reason: ServingError) -> None:
        """End every request with `reason`, on the nodes too, and each one that begins from now on."""
        self._stopped = reason
        for limit in self._limits:
            _end_now(limit)

    @asynccontextmanager
    async def _admitted(self, request: Request, times: Timeline, deadline: float) -> AsyncIterator[None]:
        """Hold room at the nodes for the block; waiting for it goes onto the bill."""
        now = asyncio.get_running_loop().time
        began = now()
        async with self._gate.admitted(request, remaining_s=deadline - began):
            times.room_s = now() - began
            yield

    @asynccontextmanager
    async def _limit(self, deadline: float) -> AsyncIterator[asyncio.Timeout]:
        if self._stopped:
            raise self._stopped
        async with asyncio.timeout_at(deadline) as limit:
            self._limits.add(limit)
            try:
                yield limit
            finally:
                self._limits.discard(limit)

    def place(self, errand: Errand, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        return self._placer.place(errand, num_accepted=num_accepted, keep=keep, avoid=avoid)

    async def place_again(self, errand: Errand, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        # Of which nothing is there yet, that is for its client a new request, and waits as one.
        wait_s = max(self._config.recovery_wait_s, 0.0 if num_accepted else self._config.node_wait_s)
        try:
            with self._metrics.waiting.track_inprogress():
                async with asyncio.timeout(wait_s):
                    return await self._first_placement(errand, num_accepted, keep, avoid)
        except TimeoutError:
            return self.place(errand, num_accepted, keep, avoid)

    def may_retry(self, error: ServingError) -> bool:
        return self._budget.take(error)

    def forbid(self, prefill: NodeRef, decode: NodeRef) -> None:
        self._placer.forbid(prefill, decode)

    def computed(self, request: RequestId) -> None:
        self._gate.computed(request)

    def learn(self, placement: Placement, found: Found, bill: Bill, num_tokens: int) -> None:
        self._placer.learn(placement, found, bill, num_tokens)

    async def _first_placement(self, errand: Errand, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        while True:
            try:
                return self.place(errand, num_accepted, keep, avoid)
            except NoReadyNode:
                await self._pool.change()


def _end_now(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())
