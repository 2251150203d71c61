"""Decides what a leg comes to once P has said its last word: attached, finished with its first token, or lost."""

import asyncio
import logging

from twostep.core.errors import ChecksumMismatch, ServingError, TransferFailed
from twostep.core.request import FinishReason, TokenEvent
from twostep.decode_node.handoff import ExpectedLeg, Handoff, Loss
from twostep.decode_node.parts import Parts
from twostep.decode_node.release import Release
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.kv_transfer.receiver import Verdict
from twostep.node.handoff_messages import Answer, Done, Outcome

log = logging.getLogger(__name__)
SUPERSEDED = Answer(Outcome.ENDED, "the leg ended while it was verified")


class Verification:
    """Verifies each leg once."""

    def __init__(self, parts: Parts, release: Release) -> None:
        self._parts = parts
        self._release = release

    async def verify(self, handoff: Handoff, expected: ExpectedLeg, done: Done) -> Answer:
        """Apply the stop rules to the first token; when the request goes on, verify every cell and attach."""
        if handoff.leg is not expected:
            return self._superseded(done)
        handoff.meter.done_at = expected.done_at
        self.fill(handoff)
        handoff.trace("verifying")
        finish = handoff.order.request.stop.finish_reason(done.first_token, handoff.next_index)
        if finish:
            return self._finish(handoff, done.first_token, finish)
        try:
            verdict: Verdict | TransferFailed = await self._compare(done)
        except TransferFailed as error:
            verdict = error
        if handoff.leg is not expected:
            return self._superseded(done)
        if isinstance(verdict, TransferFailed):
            return self.lose(handoff, verdict, drained=True)
        if not verdict.ok:
            return self.mismatch(handoff, verdict, drained=True)
        self._parts.metrics.hidden_share.observe(verdict.hidden_share(handoff.meter.done_at - done.since_computed_s))
        return self._attach(handoff, verdict, done.first_token)

    def fill(self, handoff: Handoff) -> None:
        """Note that P has the ticket."""
        if handoff.state is HandoffState.RESERVED:
            handoff.move_to(HandoffState.FILLING)

    def mismatch(self, handoff: Handoff, verdict: Verdict, *, drained: bool) -> Answer:
        """Some copy never matched its digest: nothing of it may be attached."""
        self._parts.metrics.digest_mismatches.inc(len(verdict.mismatched))
        error = ChecksumMismatch(
            f"request {handoff.id}: the copies of {len(verdict.mismatched)} cells never matched their digests"
        )
        return self.lose(handoff, error, drained=drained, outcome=Outcome.MISMATCH, mismatched=len(verdict.mismatched))

    def lose(
        self, handoff: Handoff, error: ServingError, *, drained: bool, outcome: Outcome = Outcome.ENDED, mismatched: int = 0
    ) -> Answer:
        """Give the leg up. The blocks stay for the router's next attempt when the error allows one."""
        answer = Answer(outcome, error.message, mismatched)
        log.warning(
            "a handoff was lost", extra={"request": handoff.id, "attempt": handoff.order.attempt, "reason": error.message}
        )
        self._release.drop_leg(handoff, answer, drained=drained)
        if not error.retry_elsewhere:
            self._release.end(handoff, error=error)
            return answer
        if handoff.state is HandoffState.FILLING:
            handoff.move_to(HandoffState.RESERVED)
        handoff.loss = Loss(error, self._parts.clock())
        return answer

    def _superseded(self, done: Done) -> Answer:
        return self._parts.answers.find(done.leg) or SUPERSEDED

    async def _compare(self, done: Done) -> Verdict:
        if done.cells is None:
            raise TransferFailed(f"request {done.leg.request}: the prefill node finished a request that goes on")
        try:
            return await asyncio.wrap_future(self._parts.receiver.finish(done.leg, done.cells.digests))
        except ValueError as cause:
            raise TransferFailed(f"request {done.leg.request}: {cause}") from cause

    def _finish(self, handoff: Handoff, token: int, finish: FinishReason) -> Answer:
        answer = Answer(Outcome.FINISHED)
        self._release.drop_leg(handoff, answer, drained=True)
        self._emit(handoff, token)
        self._release.end(handoff, finish=finish)
        return answer

    def _attach(self, handoff: Handoff, verdict: Verdict, token: int) -> Answer:
        parts, answer = self._parts, Answer(Outcome.ATTACHED)
        handoff.move_to(HandoffState.COMPLETE)
        handoff.meter.bytes_landed += verdict.bytes_landed
        parts.metrics.handoff_bytes.inc(verdict.bytes_landed)
        handoff.move_to(HandoffState.ATTACHED)
        handoff.meter.started_at = parts.clock()
        # The engine begins while the rest is tidied up here; its next token comes through this thread, after this one.
        finish = parts.engine.attach(handoff.id, token, attempt=handoff.order.attempt, timing=handoff.timing(parts.clock()))
        self._emit(handoff, token)
        self._release.drop_leg(handoff, answer, drained=True)
        if finish:
            self._release.end(handoff, finish=finish)
        return answer

    def _emit(self, handoff: Handoff, token: int) -> None:
        self._parts.tokens.emit(handoff.order.router, TokenEvent(handoff.id, handoff.order.attempt, handoff.next_index, token))
        handoff.next_index += 1
