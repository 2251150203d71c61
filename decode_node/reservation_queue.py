"""Takes requests in: refuses at once what can never be served, queues the rest, and renews handoffs for later attempts."""

import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from twostep.core.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NodeDraining,
    Overloaded,
    QueueFull,
    ServingError,
    StaleLeg,
)
from twostep.core.ids import RequestId
from twostep.decode_node import admission
from twostep.decode_node.admission import Admission
from twostep.decode_node.handoff import Handoff
from twostep.decode_node.legs import Legs
from twostep.decode_node.orders import Granted, Queued, ReserveOrder
from twostep.decode_node.parts import Parts
from twostep.decode_node.release import Release
from twostep.decode_node.source_peers import SourcePeers
from twostep.engine import engine
from twostep.engine.engine import Busy, Prepared
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.node.bypass import Patience
from twostep.node.handoff_messages import Answer, Outcome
from twostep.node.readiness import Readiness
from twostep.node.tenant_shares import TenantShares
from twostep.node.waiting_queue import Tried, WaitingQueue

RENEWABLE = frozenset({HandoffState.RESERVED, HandoffState.FILLING})
SUPERSEDED = "a later attempt of the same request has come"
LACKING: Mapping[str, Tried] = {engine.Lacking.RELEASE: Tried.NOT_YET, admission.Lacking.PAIR: Tried.GROUP_FULL}
"""What a request may lack without everybody behind it making its wait longer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_unread` tokens may wait for a router that does not read before it gets no more requests in."""

    growth_tokens: int
    max_queued: int
    max_unread: int
    patience: Patience


class ReservationQueue:
    """Owns the queue of requests that wait for a reservation."""

    def __init__(
        self,
        parts: Parts,
        admission: Admission,
        release: Release,
        legs: Legs,
        peers: SourcePeers,
        readiness: Readiness,
        limits: Limits,
    ) -> None:
        self.waiting: WaitingQueue[Handoff] = WaitingQueue(
            self._try_grant,
            parts.clock,
            limits.patience,
            order=self._order,
            group=lambda handoff: handoff.order.source and handoff.order.source.node,
            on_bypass=parts.metrics.queue_bypasses.inc,
        )
        self._parts = parts
        self._admission = admission
        self._release = release
        self._legs = legs
        self._peers = peers
        self._readiness = readiness
        self._limits = limits
        self._shares = TenantShares()

    async def reserve(self, order: ReserveOrder) -> AsyncGenerator[Queued | Granted, None]:
        """Yield the place in the queue whenever it changes, at last the grant; closing this before it gives the place up.

        Raises ServingError when the request is refused or ends while it waits.
        """
        try:
            handoff = self._accept(order)
        except ServingError as error:
            self._parts.metrics.refusals.labels(error.code).inc()
            raise
        try:
            while not (granted := self._granted(handoff, order)):
                yield Queued(handoff.position, self._estimate_s(handoff.position))
                await handoff.changed.wait()
        finally:
            if handoff.order is order and not handoff.granted:
                self._release.end(handoff, error=Cancelled("the reservation was closed before it was granted"))
        yield granted

    def send_away(self) -> None:
        """Tell who still waits to go elsewhere."""
        for handoff in list(self.waiting):
            self._release.end(handoff, error=NodeDraining(f"{self._parts.node} is draining"))

    def stop(self, request: RequestId, reason: ServingError) -> bool:
        """End a request, in whatever phase; returns whether it was here."""
        handoff = self._parts.handoffs.find(request)
        if handoff:
            self._release.end(handoff, error=reason)
        return handoff is not None

    def waiting_tokens(self) -> list[int]:
        """Return the number of tokens of each request that waits for a reservation."""
        return [len(handoff.order.request.tokens) for handoff in self.waiting]

    def advance(self) -> None:
        """Grant whoever can be granted, and tell the others where they stand; called when something was given back."""
        for handoff in [handoff for handoff in self.waiting if handoff.is_over]:
            self.waiting.remove(handoff)
        self.waiting.advance()
        for position, handoff in enumerate(self.waiting):
            handoff.set_position(position)

    def _granted(self, handoff: Handoff, order: ReserveOrder) -> Granted | None:
        handoff.changed.clear()
        if handoff.order is not order:
            raise StaleLeg(f"request {handoff.id}: {SUPERSEDED}")
        if handoff.is_over and not handoff.granted:
            raise handoff.error or Cancelled(f"request {handoff.id} has ended")
        return handoff.granted

    def _estimate_s(self, position: int) -> float | None:
        """Return in how many seconds the one at `position`, from 0, will have room, by the pace at which room comes back."""
        ahead = itertools.islice(self.waiting, position + 1)
        return self._admission.estimate_s(ahead, self._parts.handoffs.unattached_blocks())

    def _accept(self, order: ReserveOrder) -> Handoff:
        self._require_acceptable(order)
        prepared = self._parts.engine.prepare(order.request, growth_tokens=self._limits.growth_tokens)
        self._require_room(order)
        return self._enqueue(order, prepared)

    def _enqueue(self, order: ReserveOrder, prepared: Prepared) -> Handoff:
        known = self._parts.handoffs.find(order.request.id)
        if known and order.attempt <= known.order.attempt:
            raise Conflict(f"request {known.id} is here already, in attempt {known.order.attempt}")
        if known and self._is_renewable(known, order):
            return self._renew(known, order)
        if known:
            self._release.end(known, error=StaleLeg(f"request {known.id}: {SUPERSEDED}"))
        handoff = Handoff(order, prepared, self._parts.tracer, self._parts.clock)
        self._parts.handoffs.add(handoff)
        self._parts.leases.own(handoff.id, order.router)
        self.waiting.append(handoff)
        self.advance()
        return handoff

    def _is_renewable(self, handoff: Handoff, order: ReserveOrder) -> bool:
        is_waiting_for_kv = handoff.granted is not None and handoff.state in RENEWABLE
        return (
            is_waiting_for_kv and handoff.order.request == order.request and self._admission.can_refill(handoff, order.source)
        )

    def _renew(self, handoff: Handoff, order: ReserveOrder) -> Handoff:
        """Keep the blocks, drop the leg, and put the handoff first in the queue: it needs landing space only."""
        self._release.drop_leg(handoff, Answer(Outcome.ENDED, SUPERSEDED), drained=False)
        handoff.renew(order, self._parts.clock())
        self._parts.leases.own(handoff.id, order.router)
        self.waiting.prepend(handoff)
        self.advance()
        return handoff

    def _order(self, waiting: Sequence[Handoff]) -> list[int]:
        ranking, had = self._parts.engine.ranking(), self._shares.of({one.order.request.level.tenant for one in waiting})
        return ranking.in_turns(((one.order.request, one.timing(ranking.now)) for one in waiting), had)

    def _try_grant(self, handoff: Handoff) -> Tried:
        handoffs = self._parts.handoffs
        if handoff.is_over:
            return Tried.GONE
        if handoffs.awaits_copy(handoff):
            return Tried.NOT_YET
        try:
            self._grant(handoff, self._admission.take(handoff, handoffs.unattached_blocks()))
        except Busy as busy:
            return self._lacks(handoff, busy)
        except ServingError as error:
            self._release.end(handoff, error=error)
            return Tried.GONE
        return Tried.ADMITTED

    def _lacks(self, handoff: Handoff, busy: Busy) -> Tried:
        if busy.lacking != handoff.lacking:
            handoff.lacking = busy.lacking
            self._parts.metrics.preallocation_failures.labels(busy.lacking).inc()
        return LACKING.get(busy.lacking, Tried.NO_ROOM)

    def _grant(self, handoff: Handoff, granted: Granted) -> None:
        if handoff.state is HandoffState.QUEUED:
            handoff.move_to(HandoffState.RESERVED)
            self._shares.take(handoff.order.request.level.tenant, len(handoff.order.request.tokens))
            self._parts.metrics.cached_tokens.inc(granted.cached_tokens)
        else:
            handoff.trace(handoff.state)
        now, metrics = self._parts.clock(), self._parts.metrics
        handoff.meter.granted_at, handoff.meter.cached_tokens = now, granted.cached_tokens
        metrics.reserve_seconds.observe(now - handoff.meter.arrived_at)
        metrics.count_attempt(handoff.order.attempt)
        if handoff.leg:
            self._legs.expect(handoff, handoff.leg)
        else:
            self._start_alone(handoff)
        handoff.granted = granted
        handoff.changed.set()

    def _start_alone(self, handoff: Handoff) -> None:
        now = self._parts.clock()
        self._parts.engine.start(handoff.id, attempt=handoff.order.attempt, timing=handoff.timing(now))
        handoff.move_to(HandoffState.ATTACHED)
        handoff.meter.started_at = now

    def _require_acceptable(self, order: ReserveOrder) -> None:
        parts, request = self._parts, order.request
        self._readiness.require_open(parts.node)
        if order.timing.remaining_s <= 0:
            raise DeadlineExceeded(f"request {request.id} came after its deadline")
        if len(request.output_tokens) >= request.stop.max_tokens:
            had, limit = len(request.output_tokens), request.stop.max_tokens
            raise InvalidRequest(f"{had} tokens were drawn, max_tokens is {limit}", param="max_tokens")
        if order.source:
            own = parts.engine.runner.fingerprint
            own.require_equal(order.source.fingerprint, here=str(parts.node), there=str(order.source.node))
            self._peers.require_proven(order.source.node, order.source.geometry)

    def _require_room(self, order: ReserveOrder) -> None:
        limits, num_unread = self._limits, self._parts.tokens.backlog(order.router)
        if num_unread > limits.max_unread:
            raise Overloaded(f"router {order.router} has left {num_unread} tokens unread")
        if len(self.waiting) >= limits.max_queued:
            wait_s = self._estimate_s(len(self.waiting))
            raise QueueFull(f"{len(self.waiting)} requests wait at {self._parts.node} already", retry_after_s=wait_s or None)
