"""Which legs live on a prefill node: queues them for blocks, and brings each one what the engine and others say of it."""

import asyncio
from collections.abc import Iterator, Sequence

from twostep.core.errors import (
    Cancelled,
    ChecksumMismatch,
    DeadlineExceeded,
    QueueFull,
    ServingError,
    StaleLeg,
    TransferFailed,
    TransferTimeout,
)
from twostep.core.ids import Attempt, RequestId
from twostep.core.ticket import Leg
from twostep.engine.engine import Busy, Prepared, StepResult
from twostep.node.bypass import Patience
from twostep.node.handoff_messages import Abort, AbortState, Answer, Credit, Outcome
from twostep.node.tenant_shares import TenantShares
from twostep.node.waiting_queue import Tried, WaitingQueue
from twostep.prefill_node.leg import Phase, PrefillLeg, PrefillOrder
from twostep.prefill_node.leg_runner import LegRunner
from twostep.prefill_node.parts import Parts

WAITS_FOR_OTHERS = frozenset({Phase.SENDING, Phase.AWAITING_ANSWER})


class Legs:
    """Every leg until its blocks are free. A later attempt of the same request waits for the earlier one's end."""

    def __init__(self, parts: Parts, max_queued: int, patience: Patience) -> None:
        self.waiting: WaitingQueue[PrefillLeg] = WaitingQueue(
            self._try_admit, parts.clock, patience, order=self._order, on_bypass=parts.metrics.queue_bypasses.inc
        )
        self.leg_runner = LegRunner(parts, on_over=self._over)
        self._parts = parts
        self._max_queued = max_queued
        self._legs: dict[tuple[RequestId, Attempt], PrefillLeg] = {}
        self._shares = TenantShares()
        self._idle = asyncio.Event()

    def __iter__(self) -> Iterator[PrefillLeg]:
        return iter(tuple(self._legs.values()))

    def owners(self) -> frozenset[RequestId]:
        """Return whoever answers for blocks. May be called from any thread."""
        return frozenset(request for request, _ in tuple(self._legs))

    def count(self) -> dict[str, int]:
        """Count the legs by phase."""
        phases = [leg.phase for leg in self]
        return {phase.value: phases.count(phase) for phase in Phase if phase is not Phase.ENDED}

    def find(self, leg: Leg) -> PrefillLeg | None:
        found = self._legs.get((leg.request, leg.attempt))
        return found if found and found.id == leg else None

    def of(self, request: RequestId) -> list[PrefillLeg]:
        return [leg for leg in self if leg.request_id == request]

    def begin(self, order: PrefillOrder, prepared: Prepared) -> PrefillLeg:
        """Queue a new leg and run it. Raises StaleLeg when a later attempt is here, QueueFull when the queue is full."""
        self._require_place(order)
        leg = PrefillLeg(order, prepared, self._parts.tracer, self._parts.clock)
        for earlier in self.of(leg.request_id):
            earlier.stop(StaleLeg(f"request {leg.request_id}: attempt {leg.id.attempt} has come"))
        self._legs[leg.request_id, leg.id.attempt] = leg
        self._parts.leases.own(leg.request_id, order.router)
        self._parts.background.spawn(self.leg_runner.run(leg))
        self.waiting.append(leg)
        self.advance()
        return leg

    def advance(self) -> None:
        """Admit whoever can be and number the others; called when something was given back."""
        for leg in [leg for leg in self.waiting if leg.is_stopped]:
            self.waiting.remove(leg)
        self.waiting.advance()
        for position, leg in enumerate(self.waiting):
            leg.position = position
        if self._legs:
            self._idle.clear()
        else:
            self._idle.set()

    async def abort(self, abort: Abort) -> AbortState:
        """End a leg on D's word; returns when it is known whether any write is still in flight.

        An abort that comes before its leg is remembered and refuses it.
        """
        found = self.find(abort.leg)
        if found is None:
            why = "late" if abort.leg in self._parts.record else "unknown"
            self._parts.metrics.noop_messages.labels("abort", why).inc()
            return self._parts.record.refuse(abort.leg, abort.generation)
        found.stop(_error_of(abort.answer), tell=False)
        return AbortState.DRAINED if await asyncio.shield(found.drained) else AbortState.NOT_DRAINED

    def credit(self, credit: Credit) -> None:
        """Let slots of a ring be written again; an old credit changes nothing; TransferFailed outside the leg."""
        found = self.find(credit.leg)
        if not found or not found.outgoing or found.ticket.extent.generation != credit.generation:
            self._parts.metrics.noop_messages.labels("credit", "late").inc()
            return
        try:
            found.outgoing.credit(credit.layers, credit.end_block)
        except ValueError as cause:
            raise TransferFailed(f"request {credit.leg.request}: {cause}") from cause

    def stop(self, request: RequestId, reason: ServingError) -> bool:
        """End all legs of a request; returns whether there was one."""
        legs = self.of(request)
        for leg in legs:
            leg.stop(reason)
        self.advance()
        return bool(legs)

    def waiting_tokens(self) -> list[int]:
        """Return the number of tokens of each leg that waits for blocks."""
        return [len(leg.order.request.tokens) for leg in self.waiting]

    def stop_waiting(self, reason: ServingError) -> None:
        """End the legs that have no blocks yet."""
        for leg in list(self.waiting):
            leg.stop(reason)
        self.advance()

    def stop_all(self, reason: ServingError) -> None:
        for leg in self:
            leg.stop(reason)
        self.advance()

    async def empty(self) -> None:
        """Wait until the last leg has given its blocks back."""
        await self._idle.wait()

    def take_step(self, result: StepResult) -> None:
        """Bring first tokens and faults of one engine step to their legs."""
        for event in result.events:
            leg = self._legs.get((event.request, Attempt(event.attempt)))
            if leg and not leg.first_token.done():
                leg.first_token.set_result(event.token)
        for request, error in result.faults:
            self.stop(request, error)
        self._parts.free_watch.check()
        self.advance()

    def watch(self) -> None:
        """End legs whose time is over, and those that wait in vain for writes, credits or an answer; for the timer."""
        now, timers, hopeless = self._parts.clock(), self._parts.timers, set(self._parts.engine.hopeless())
        self._parts.metrics.hopeless.inc(len(hopeless))
        for leg in self:
            if now >= leg.deadline or leg.request_id in hopeless:
                leg.stop(DeadlineExceeded(f"request {leg.request_id} has run out of time"))
            elif leg.phase in WAITS_FOR_OTHERS and leg.idle_s() >= timers.progress_s:
                leg.stop(TransferTimeout(f"request {leg.request_id}: {leg.phase} for {timers.progress_s:g} s"))

    def due_at(self) -> Iterator[float]:
        """Return when `watch` will have something to end, should nothing happen until then."""
        for leg in self:
            if not leg.is_stopped:
                waits = leg.phase in WAITS_FOR_OTHERS
                yield min(leg.deadline, leg.moved_at + self._parts.timers.progress_s) if waits else leg.deadline

    def _order(self, waiting: Sequence[PrefillLeg]) -> list[int]:
        had = self._shares.of({leg.order.request.level.tenant for leg in waiting})
        return self._parts.engine.ranking().in_turns(((leg.order.request, leg.timing) for leg in waiting), had)

    def _try_admit(self, leg: PrefillLeg) -> Tried:
        if leg.is_stopped:
            return Tried.GONE
        if self._parts.engine.knows(leg.request_id):
            return Tried.NOT_YET
        try:
            leg.reservation = self._parts.engine.take(leg.prepared)
        except Busy as busy:
            return self._lacks(leg, busy)
        except ServingError as error:
            leg.stop(error)
            return Tried.GONE
        self._parts.metrics.cached_tokens.inc(leg.reservation.cached_tokens)
        self._shares.take(leg.order.request.level.tenant, len(leg.order.request.tokens))
        leg.admitted.set_result(leg.reservation)
        return Tried.ADMITTED

    def _lacks(self, leg: PrefillLeg, busy: Busy) -> Tried:
        if busy.lacking != leg.lacking:
            leg.lacking = busy.lacking
            self._parts.metrics.preallocation_failures.labels(busy.lacking).inc()
        return Tried.NO_ROOM

    def _over(self, leg: PrefillLeg) -> None:
        drained = leg.drained.result()
        state = AbortState.DRAINED if drained else AbortState.NOT_DRAINED
        self._parts.record.end(leg.id, leg.ticket.extent.generation, state)
        del self._legs[leg.request_id, leg.id.attempt]
        if not self.of(leg.request_id):
            self._parts.leases.disown(leg.request_id)
        self.advance()

    def _require_place(self, order: PrefillOrder) -> None:
        request, attempt = order.request.id, order.ticket.leg.attempt
        if any(leg.id.attempt >= attempt for leg in self.of(request)):
            raise StaleLeg(f"request {request}: attempt {attempt} or a later one is here already")
        if len(self.waiting) >= self._max_queued:
            wait_s = self._wait_s(order)
            raise QueueFull(f"{len(self.waiting)} requests wait at {self._parts.node} already", retry_after_s=wait_s or None)

    def _wait_s(self, order: PrefillOrder) -> float | None:
        """Return in how many seconds there will be room for one more behind all who wait, by the measured pace."""
        engine = self._parts.engine
        num_tokens = [len(leg.order.request.tokens) for leg in self.waiting] + [len(order.request.tokens)]
        num_blocks = sum(map(engine.runner.kv.layout.num_blocks, num_tokens))
        return engine.supplies().blocks.wait_s(num_blocks)


def _error_of(answer: Answer) -> ServingError:
    """Return why a leg ends that D no longer wants."""
    return ChecksumMismatch(answer.reason) if answer.outcome is Outcome.MISMATCH else Cancelled(answer.reason)
