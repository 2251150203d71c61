"""Decides what a leg comes to once P has said its last word: attached, finished with its first token, or lost."""

import asyncio
import logging

from twostep.core.errors import ChecksumMismatch, ServingError, TransferFailed
from twostep.core.request import FinishReason, TokenEvent
from twostep.decode_node.departure import Departure
from twostep.decode_node.parts import Parts
from twostep.decode_node.seat import ExpectedLeg, Loss, Seat
from twostep.kv_transfer.handoff import HandoffState
from twostep.kv_transfer.receiver import Verdict
from twostep.node.handoff_messages import Answer, Done, Outcome

logger = logging.getLogger(__name__)
SUPERSEDED = Answer(Outcome.ENDED, "the leg ended while it was verified")


class Settlement:
    """Settles each leg once."""

    def __init__(self, parts: Parts, departure: Departure) -> None:
        self._parts = parts
        self._departure = departure

    async def settle(self, seat: Seat, expected: ExpectedLeg, done: Done) -> Answer:
        """Apply the stop rules to the first token; when the request goes on, verify every cell and attach."""
        seat.tally.done_at = self._parts.clock()
        self.fill(seat)
        finish = seat.order.request.stop.finish_reason(done.first_token, seat.next_index)
        if finish:
            return self._finish(seat, done.first_token, finish)
        try:
            verdict: Verdict | TransferFailed = await self._verify(done)
        except TransferFailed as error:
            verdict = error
        if seat.leg is not expected:
            return self._parts.answers.find(done.leg) or SUPERSEDED
        if isinstance(verdict, TransferFailed):
            return self.lose(seat, verdict, drained=True)
        return self._attach(seat, verdict, done.first_token) if verdict.ok else self.mismatch(seat, verdict, drained=True)

    def fill(self, seat: Seat) -> None:
        """Note that P has the ticket."""
        if seat.state is HandoffState.RESERVED:
            seat.move_to(HandoffState.FILLING)

    def mismatch(self, seat: Seat, verdict: Verdict, *, drained: bool) -> Answer:
        """Some copy never matched its digest: nothing of it may be attached."""
        self._parts.metrics.digest_mismatches.inc(len(verdict.mismatched))
        error = ChecksumMismatch(
            f"request {seat.id}: the copies of {len(verdict.mismatched)} cells never matched their digests"
        )
        return self.lose(seat, error, drained=drained, outcome=Outcome.MISMATCH, mismatched=len(verdict.mismatched))

    def lose(
        self, seat: Seat, error: ServingError, *, drained: bool, outcome: Outcome = Outcome.ENDED, mismatched: int = 0
    ) -> Answer:
        """Give the leg up. The blocks stay for the router's next attempt when the error allows one."""
        answer = Answer(outcome, error.message, mismatched)
        logger.warning("a handoff was lost", extra={"request": seat.id, "attempt": seat.order.attempt, "reason": error.message})
        self._departure.drop_leg(seat, answer, drained=drained)
        if not error.retry_elsewhere:
            self._departure.end(seat, error=error)
            return answer
        if seat.state is HandoffState.FILLING:
            seat.move_to(HandoffState.RESERVED)
        seat.loss = Loss(error, self._parts.clock())
        return answer

    async def _verify(self, done: Done) -> Verdict:
        if done.cells is None:
            raise TransferFailed(f"request {done.leg.request}: the prefill node finished a request that goes on")
        try:
            return await asyncio.wrap_future(self._parts.receiver.finish(done.leg, done.cells.digests))
        except ValueError as cause:
            raise TransferFailed(f"request {done.leg.request}: {cause}") from cause

    def _finish(self, seat: Seat, token: int, finish: FinishReason) -> Answer:
        answer = Answer(Outcome.FINISHED)
        self._departure.drop_leg(seat, answer, drained=True)
        self._emit(seat, token)
        self._departure.end(seat, finish=finish)
        return answer

    def _attach(self, seat: Seat, verdict: Verdict, token: int) -> Answer:
        parts, answer = self._parts, Answer(Outcome.ATTACHED)
        seat.move_to(HandoffState.COMPLETE)
        seat.tally.bytes_landed += verdict.bytes_landed
        parts.metrics.handoff_bytes.inc(verdict.bytes_landed)
        self._departure.drop_leg(seat, answer, drained=True)
        self._emit(seat, token)
        seat.move_to(HandoffState.ATTACHED)
        seat.tally.started_at = parts.clock()
        finish = parts.engine.attach(seat.id, token, attempt=seat.order.attempt)
        if finish:
            self._departure.end(seat, finish=finish)
        return answer

    def _emit(self, seat: Seat, token: int) -> None:
        self._parts.tokens.emit(seat.order.router, TokenEvent(seat.id, seat.order.attempt, seat.next_index, token))
        seat.next_index += 1
