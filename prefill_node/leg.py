"""One leg on a prefill node: what it has got, how far it is, and the one reason for which it may have to stop."""

import asyncio
import enum
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from twostep.core.bill import PrefillBill
from twostep.core.clock import Clock
from twostep.core.errors import ServingError
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import RequestId, RouterId
from twostep.core.request import Request, Timing
from twostep.core.ticket import Leg, Ticket
from twostep.engine.engine import Prepared, Reservation
from twostep.kv_transfer.sender import OutgoingLeg
from twostep.node.trace import Tracer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PrefillOrder:
    """What a router asks of a prefill node. `fingerprint` is the decode node's; `age_s` and `traceparent` are the request's."""

    router: RouterId
    request: Request
    ticket: Ticket
    fingerprint: Fingerprint
    age_s: float = 0.0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What came of a leg that the decode node has taken over."""

    bill: PrefillBill
    first_token: int


class Phase(enum.StrEnum):
    QUEUED = "queued"
    COMPUTING = "computing"
    SENDING = "sending"
    """All is computed; writes are in flight, or wait for credits."""
    AWAITING_ANSWER = "awaiting_answer"
    ENDED = "ended"


class PrefillLeg:
    """Changed by the control thread only. Each future is resolved at most once, by the leg's own task but for `stop`."""

    def __init__(self, order: PrefillOrder, prepared: Prepared, tracer: Tracer, clock: Clock) -> None:
        loop = asyncio.get_running_loop()
        self.order = order
        self.prepared = prepared
        self.ticket = order.ticket
        self.arrived_at = self.stopped_at = clock()
        self.deadline = self.arrived_at + order.ticket.remaining_s
        self.position = 0
        self.lacking = ""
        """What it was found to wait for when it was tried last."""
        self.reservation: Reservation | None = None
        self.outgoing: OutgoingLeg | None = None
        self.admitted: asyncio.Future[Reservation] = loop.create_future()
        self.first_token: asyncio.Future[int] = loop.create_future()
        self.drained: asyncio.Future[bool] = loop.create_future()
        """Whether every posted write is known to be done; resolved when nothing more will be posted."""
        self.over: asyncio.Future[Prefilled | ServingError] = loop.create_future()
        self.must_tell = True
        """Whether the decode node still has to hear how the leg ended."""
        self._seen_bytes = 0
        self._clock = clock
        self._tracer = tracer
        self.enter(Phase.QUEUED)
        self._reason: asyncio.Future[ServingError] = loop.create_future()

    @property
    def id(self) -> Leg:
        return self.ticket.leg

    @property
    def request_id(self) -> RequestId:
        return self.ticket.leg.request

    @property
    def is_stopped(self) -> bool:
        return self._reason.done() or self.phase is Phase.ENDED

    @property
    def bytes_sent(self) -> int:
        """Return how many bytes have been written, as far as their writes are done."""
        return self.outgoing.report().bytes_sent if self.outgoing else 0

    @property
    def timing(self) -> Timing:
        """How old the request is, and what is left of its time."""
        now = self._clock()
        return Timing(self.order.age_s + now - self.arrived_at, self.deadline - now)

    def enter(self, phase: Phase) -> None:
        self.phase, self.moved_at = phase, self._clock()
        if phase is Phase.ENDED:
            self._tracer.leave(self.request_id, self.id.attempt)
        else:
            self._tracer.enter(self.request_id, self.id.attempt, phase, self.order.traceparent)

    def idle_s(self) -> float:
        """Return for how long the leg has been seen in its phase without another byte sent; asked regularly by the timer."""
        if self.bytes_sent != self._seen_bytes:
            self._seen_bytes, self.moved_at = self.bytes_sent, self._clock()
        return self._clock() - self.moved_at

    def stop(self, reason: ServingError, *, tell: bool = True) -> None:
        """Make the leg end at its next wait. The first reason stands; with `tell` unset the decode node knows already."""
        self.must_tell = self.must_tell and tell
        if not self._reason.done():
            self.stopped_at = self._clock()
            self._reason.set_result(reason)

    async def unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for `work` and return its result. Raises the reason when the leg is stopped first; then `work` is not begun."""
        task = asyncio.ensure_future(work)
        try:
            if not self._reason.done():
                either: list[asyncio.Future[Any]] = [task, self._reason]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
            raise self._reason.result()
        finally:
            task.cancel()
