"""Takes requests in: refuses at once what can never be served, queues the rest, and renews seats for later attempts."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from twostep.core.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NodeUnavailable,
    Overloaded,
    QueueFull,
    ServingError,
    StaleLeg,
)
from twostep.core.ids import RequestId
from twostep.decode_node.admission import Admission
from twostep.decode_node.departure import Departure
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.orders import Granted, Order, Queued
from twostep.decode_node.parts import Parts
from twostep.decode_node.seat import Seat
from twostep.decode_node.source_book import SourceBook
from twostep.engine.engine import Busy
from twostep.kv_transfer.handoff import HandoffState
from twostep.node.handoff_messages import Answer, Outcome
from twostep.node.line import Line

RENEWABLE = frozenset({HandoffState.RESERVED, HandoffState.FILLING})
SUPERSEDED = "a later attempt of the same request has come"


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_unread` tokens may wait for a router that does not read before it gets no more requests in."""

    growth_tokens: int
    max_queued: int
    max_unread: int


class Reception:
    """Owns the waiting line of a decode node."""

    def __init__(
        self,
        parts: Parts,
        admission: Admission,
        departure: Departure,
        handoffs: Handoffs,
        sources: SourceBook,
        limits: Limits,
    ) -> None:
        self.line: Line[Seat] = Line(self._try_seat, parts.clock)
        self._is_closed = False
        self._parts = parts
        self._admission = admission
        self._departure = departure
        self._handoffs = handoffs
        self._sources = sources
        self._limits = limits

    async def reserve(self, order: Order) -> AsyncGenerator[Queued | Granted, None]:
        """Yield the place in the line whenever it changes, at last the grant; closing this before it gives the place up.

        Raises ServingError when the request is refused or ends while it waits.
        """
        self._require_acceptable(order)
        seat = self._seat(order)
        try:
            while not (granted := self._granted(seat, order)):
                yield Queued(seat.position, self.line.estimate_s(seat.position))
                await seat.changed.wait()
        finally:
            if seat.order is order and not seat.granted:
                self._departure.end(seat, error=Cancelled("the reservation was closed before it was granted"))
        yield granted

    @property
    def growth_tokens(self) -> int:
        """Room for output that is reserved with each prompt."""
        return self._limits.growth_tokens

    def close(self) -> None:
        """Take nobody in any more; who still waits is told to go elsewhere."""
        self._is_closed = True
        for seat in list(self.line):
            self._departure.end(seat, error=NodeUnavailable(f"{self._parts.node} is draining"))

    def end(self, request: RequestId, error: ServingError) -> bool:
        """End a request, in whatever phase; returns whether it was here."""
        seat = self._parts.seats.find(request)
        if seat:
            self._departure.end(seat, error=error)
        return seat is not None

    def advance(self) -> None:
        """Seat whoever can be, and tell the others where they stand; called when something was given back."""
        for seat in [seat for seat in self.line if seat.is_over]:
            self.line.leave(seat)
        self.line.advance()
        for position, seat in enumerate(self.line):
            seat.stand_at(position)

    def _granted(self, seat: Seat, order: Order) -> Granted | None:
        seat.changed.clear()
        if seat.order is not order:
            raise StaleLeg(f"request {seat.id}: {SUPERSEDED}")
        if seat.is_over and not seat.granted:
            raise seat.error or Cancelled(f"request {seat.id} has ended")
        return seat.granted

    def _seat(self, order: Order) -> Seat:
        known = self._parts.seats.find(order.request.id)
        if known and order.attempt <= known.order.attempt:
            raise Conflict(f"request {known.id} is here already, in attempt {known.order.attempt}")
        if known and known.granted and known.state in RENEWABLE and known.order.request == order.request:
            return self._renew(known, order)
        if known:
            self._departure.end(known, error=StaleLeg(f"request {known.id}: {SUPERSEDED}"))
        seat = Seat(order, self._parts.clock)
        self._parts.seats.add(seat)
        self._parts.leases.own(seat.id, order.router)
        self.line.join(seat)
        self.advance()
        return seat

    def _renew(self, seat: Seat, order: Order) -> Seat:
        """Keep the blocks, drop the leg, and put the seat first in the line: it needs landing space only."""
        self._departure.drop_leg(seat, Answer(Outcome.ENDED, SUPERSEDED), drained=False)
        seat.renew(order, self._parts.clock())
        self._parts.leases.own(seat.id, order.router)
        self.line.rejoin(seat)
        self.advance()
        return seat

    def _try_seat(self, seat: Seat) -> bool:
        seats = self._parts.seats
        if seat.is_over:
            return True
        if seats.is_leaving(seat.id) or not seat.is_quiet:
            return False
        try:
            self._grant(seat, self._admission.take(seat, seats.unattached_blocks()))
        except Busy:
            return False
        except ServingError as error:
            self._departure.end(seat, error=error)
        return True

    def _grant(self, seat: Seat, granted: Granted) -> None:
        if seat.state is HandoffState.QUEUED:
            seat.move_to(HandoffState.RESERVED)
            self._parts.metrics.cached_tokens.inc(granted.cached_tokens)
        seat.tally.granted_at, seat.tally.cached_tokens = self._parts.clock(), granted.cached_tokens
        if seat.leg:
            self._handoffs.expect(seat, seat.leg)
        else:
            self._start_alone(seat)
        seat.granted = granted
        seat.changed.set()

    def _start_alone(self, seat: Seat) -> None:
        self._parts.engine.start(seat.id, attempt=seat.order.attempt)
        seat.move_to(HandoffState.ATTACHED)
        seat.tally.started_at = self._parts.clock()

    def _require_acceptable(self, order: Order) -> None:
        parts, request = self._parts, order.request
        if self._is_closed:
            raise NodeUnavailable(f"{parts.node} is draining")
        if order.remaining_s <= 0:
            raise DeadlineExceeded(f"request {request.id} came after its deadline")
        if len(request.output_tokens) >= request.stop.max_tokens:
            had, limit = len(request.output_tokens), request.stop.max_tokens
            raise InvalidRequest(f"{had} tokens were drawn, max_tokens is {limit}", param="max_tokens")
        parts.engine.require_servable(request, growth_tokens=self._limits.growth_tokens)
        if order.source:
            own = parts.engine.runner.fingerprint
            own.require_equal(order.source.fingerprint, here=str(parts.node), there=str(order.source.node))
            self._sources.require_proven(order.source.node)
        self._require_room(order)

    def _require_room(self, order: Order) -> None:
        limits, num_unread = self._limits, self._parts.tokens.backlog(order.router)
        if num_unread > limits.max_unread:
            raise Overloaded(f"router {order.router} has left {num_unread} tokens unread")
        if len(self.line) >= limits.max_queued:
            wait_s = self.line.estimate_s(len(self.line))
            raise QueueFull(f"{len(self.line)} requests wait at {self._parts.node} already", retry_after_s=wait_s or None)
