"""The one way out: every end of a request on a decode node, whatever its cause and phase, goes through `Departure.end`."""

import asyncio
from collections.abc import Callable

from twostep.core.errors import Cancelled, ServingError
from twostep.core.request import FinishReason
from twostep.decode_node.parts import Parts
from twostep.decode_node.seat import ExpectedLeg, Seat
from twostep.decode_node.tokens import Ended
from twostep.kv_transfer.handoff import HandoffState
from twostep.node.free_watch import FreeWatch
from twostep.node.handoff_messages import Answer, Outcome


class Departure:
    """Gives back what a seat holds: its landing extent as soon as that is proven, its blocks as soon as no copy runs.

    `on_room` is called whenever something was given back.
    """

    def __init__(self, parts: Parts, on_room: Callable[[], None]) -> None:
        self._parts = parts
        self._on_room = on_room
        self.free_watch = FreeWatch(parts.engine, parts.metrics, parts.clock)

    def end(self, seat: Seat, *, finish: FinishReason | None = None, error: ServingError | None = None) -> None:
        """End a request; the second end of the same one changes nothing. The router's stream gets the last word."""
        if seat.is_over:
            return
        parts, now = self._parts, self._parts.clock()
        seat.error = error
        seat.move_to(HandoffState.FREED)
        parts.seats.leave(seat)
        parts.leases.disown(seat.id)
        self.drop_leg(seat, Answer(Outcome.ENDED, error.message if error else "the request has ended"), drained=False)
        if seat.granted:
            self._tell(seat, finish, error, now)
        if isinstance(error, Cancelled):
            self.free_watch.begin(seat.id, now)
        self._when_quiet(seat, lambda: self._release(seat))

    def drop_leg(self, seat: Seat, answer: Answer, *, drained: bool) -> None:
        """End the seat's leg, if it has one: later messages of it get `answer`.

        When not `drained`, P is told to stop and asked for proof that no write is in flight.
        """
        expected, seat.leg = seat.leg, None
        if expected is None:
            return
        parts = self._parts
        parts.answers.record(expected.leg, answer)
        parts.metrics.handoffs.labels(answer.outcome.value).inc()
        seat.quiet = asyncio.wrap_future(parts.receiver.forget(expected.leg))
        self._when_quiet(seat, self._on_room)
        parts.background.spawn(self._return_extent(expected, seat.quiet, answer.reason, drained))

    async def _return_extent(self, expected: ExpectedLeg, quiet: asyncio.Future[None], reason: str, drained: bool) -> None:
        proven = drained or await self._parts.sources.abort(expected.leg, reason)
        await asyncio.shield(quiet)
        self._parts.landing.give_back(expected.extent, proven=proven)
        self._on_room()

    def _release(self, seat: Seat) -> None:
        self._parts.engine.release(seat.id)
        self._parts.seats.gone(seat.id)
        self.free_watch.look()
        self._on_room()

    def _tell(self, seat: Seat, finish: FinishReason | None, error: ServingError | None, now: float) -> None:
        if isinstance(error, Cancelled):
            finish, error = FinishReason.CANCELLED, None
        order = seat.order
        self._parts.tokens.end(
            order.router, Ended(seat.id, order.attempt, seat.tally.bill(now), seat.next_index, finish, error)
        )

    def _when_quiet(self, seat: Seat, then: Callable[[], None]) -> None:
        if seat.quiet is None or seat.quiet.done():
            then()
        else:
            seat.quiet.add_done_callback(lambda _: then())
