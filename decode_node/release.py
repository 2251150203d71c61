"""The one way out: every end of a request on a decode node, whatever its cause and phase, goes through `Release.end`."""

import asyncio
from collections.abc import Callable

from twostep.core.errors import Cancelled, ServingError
from twostep.core.request import FinishReason
from twostep.decode_node.handoff import ExpectedLeg, Handoff
from twostep.decode_node.parts import Parts
from twostep.decode_node.tokens import Ended
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.node.free_watch import CUT_SHORT, FreeWatch
from twostep.node.handoff_messages import Abort, Answer, Outcome


class Release:
    """Gives back what a handoff holds: its landing extent as soon as that is proven, its blocks as soon as no copy runs.

    `on_room` is called whenever something was given back.
    """

    def __init__(self, parts: Parts, on_room: Callable[[], None]) -> None:
        self._parts = parts
        self._on_room = on_room
        self.free_watch = FreeWatch(parts.engine, parts.metrics, parts.clock)

    def end(self, handoff: Handoff, *, finish: FinishReason | None = None, error: ServingError | None = None) -> None:
        """End a request; the second end of the same one changes nothing. The router's stream gets the last word."""
        if handoff.is_over:
            return
        parts, now = self._parts, self._parts.clock()
        handoff.error = error
        handoff.move_to(HandoffState.FREED)
        parts.handoffs.remove(handoff)
        parts.leases.disown(handoff.id)
        self.drop_leg(handoff, Answer(Outcome.ENDED, error.message if error else "the request has ended"), drained=False)
        if handoff.granted and not handoff.is_last_word_said:
            self._tell(handoff, finish, error, now)
        if handoff.reservation and handoff.meter.granted_at is not None:
            unattached_s = (handoff.meter.started_at or now) - handoff.meter.granted_at
            parts.unattached_holds.record(len(handoff.reservation.table), unattached_s)
        if isinstance(error, CUT_SHORT):
            self.free_watch.begin(handoff.id, now)
        if handoff.reservation:
            parts.engine.end(handoff.id)
            self._when_quiet(handoff, lambda: self._free(handoff))
        else:
            # What the engine may hold under this id is an earlier life's of the request, for that one to give back.
            self._given_back()

    def tell_lost(self, handoff: Handoff, error: ServingError) -> None:
        """Give the router the last word about an attempt whose leg is lost; its blocks wait for the next one."""
        self._tell(handoff, None, error, self._parts.clock())

    def drop_leg(self, handoff: Handoff, answer: Answer, *, drained: bool) -> None:
        """End the handoff's leg, if it has one: later messages of it get `answer`.

        When not `drained`, P is told to stop and asked for proof that no write is in flight.
        """
        expected, handoff.leg = handoff.leg, None
        if expected is None:
            return
        parts = self._parts
        parts.answers.record(expected.id, answer)
        parts.metrics.handoffs.labels(answer.outcome.value).inc()
        handoff.quiet = asyncio.wrap_future(parts.receiver.forget(expected.id))
        if drained:
            self._when_quiet(handoff, lambda: self._lend_again(expected))
            return
        self._when_quiet(handoff, self._on_room)
        # It rests from now on. Should P not answer, asking it has taken no time from anybody who waits for this space.
        parts.landing.give_back(expected.extent, proven=False)
        parts.background.spawn(self._ask_for_proof(expected, handoff.quiet, answer))

    async def _ask_for_proof(self, expected: ExpectedLeg, quiet: asyncio.Future[None], answer: Answer) -> None:
        is_drained = await self._parts.sources.abort(Abort(expected.id, expected.extent.generation, answer))
        await asyncio.shield(quiet)
        if is_drained:
            self._lend_again(expected)

    def _lend_again(self, expected: ExpectedLeg) -> None:
        self._parts.landing.give_back(expected.extent, proven=True)
        self._on_room()

    def _free(self, handoff: Handoff) -> None:
        self._parts.engine.release(handoff.id)
        self._parts.handoffs.released(handoff.id)
        self._given_back()

    def _given_back(self) -> None:
        self.free_watch.check()
        self._on_room()

    def _tell(self, handoff: Handoff, finish: FinishReason | None, error: ServingError | None, now: float) -> None:
        if isinstance(error, Cancelled):
            finish, error = FinishReason.CANCELLED, None
        order, handoff.is_last_word_said = handoff.order, True
        self._parts.tokens.end(
            order.router, Ended(handoff.id, order.attempt, handoff.meter.bill(now), handoff.next_index, finish, error)
        )

    def _when_quiet(self, handoff: Handoff, then: Callable[[], None]) -> None:
        if handoff.quiet is None or handoff.quiet.done():
            then()
        else:
            handoff.quiet.add_done_callback(lambda _: then())
