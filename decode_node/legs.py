"""Takes up what prefill nodes say about their legs. Late, repeated and unknown messages change nothing and are counted."""

import asyncio
import math
from collections.abc import Iterator, Sequence

from twostep.core.errors import NodeUnavailable, StaleLeg, TransferFailed, TransferTimeout
from twostep.core.ids import Generation, NodeRef
from twostep.core.ticket import Leg
from twostep.decode_node.handoff import ExpectedLeg, Handoff
from twostep.decode_node.parts import Parts
from twostep.decode_node.progress import Sign
from twostep.decode_node.release import Release
from twostep.decode_node.verification import Verification
from twostep.kv_transfer.pieces import Piece
from twostep.node.handoff_messages import Answer, Credit, Done, Failed, Landed, LegProgress, Outcome

UNKNOWN = Answer(Outcome.UNKNOWN_LEG, "no such leg was granted here, or too long ago")


class Legs:
    """The legs that fill blocks of this node, by P's words."""

    def __init__(self, parts: Parts, release: Release) -> None:
        self._parts = parts
        self._release = release
        self._verification = Verification(parts, release)

    def expect(self, handoff: Handoff, expected: ExpectedLeg) -> None:
        """Begin to copy in what lands for a handoff whose ticket is about to go out."""
        source, reservation = handoff.order.source, handoff.reservation
        assert source is not None
        assert reservation is not None
        self._parts.receiver.expect(expected.id, expected.extent, expected.missing, source.geometry, reservation.table)

    async def done(self, done: Done) -> Answer:
        """Verify the leg, once: a repeat waits for the same answer or gets it from the record."""
        found = self._find(done.leg, done.generation)
        if found is None:
            return self._recorded(done.leg, "done")
        handoff, expected = found
        if expected.verifying is None:
            expected.done_at = self._parts.clock()
            expected.verifying = self._parts.background.spawn(self._verification.verify(handoff, expected, done))
        else:
            self._count_noop("done", "repeated")
        return await self._verified(expected)

    async def failed(self, failed: Failed) -> Answer:
        """Give the leg up, unless its Done came before."""
        found = self._find(failed.leg, failed.generation)
        if found is None:
            return self._recorded(failed.leg, "failed")
        handoff, expected = found
        if expected.verifying is None:
            return self._verification.lose(handoff, failed.error, drained=failed.drained)
        self._count_noop("failed", "repeated")
        return await self._verified(expected)

    async def landed(self, landed: Landed) -> None:
        """Verify written cells of a ring and let P write their slots again."""
        found = self._find(landed.leg, landed.generation)
        if found is None:
            self._recorded(landed.leg, "landed")
            return
        handoff, expected = found
        self._verification.fill(handoff)
        expected.watch.moved(self._parts.clock())
        cells = landed.cells
        piece = Piece(cells.layers, cells.blocks)
        try:
            verdict = await asyncio.wrap_future(self._parts.receiver.landed(landed.leg, piece, cells.digests))
        except StaleLeg:
            return
        except ValueError as cause:
            raise TransferFailed(f"request {handoff.id}: {cause}") from cause
        if handoff.leg is not expected:
            return
        if verdict.ok:
            credit = Credit(landed.leg, landed.generation, cells.layers, verdict.verified_end)
            self._parts.background.spawn(self._parts.sources.credit(credit))
        else:
            self._verification.mismatch(handoff, verdict, drained=False)

    def progress(self, source: NodeRef, engine_step: int, legs: Sequence[LegProgress]) -> tuple[Leg, ...]:
        """Note how far P is with its legs; returns those that are unknown here, which P should end."""
        return tuple(told.leg for told in legs if told.leg.source != source or not self._hear(told, engine_step))

    def lose_source(self, source: NodeRef) -> None:
        """Give up every leg of a prefill node's earlier life."""
        for handoff in self._parts.handoffs:
            if handoff.leg and handoff.leg.id.source == source and not handoff.leg.verifying:
                self._verification.lose(handoff, NodeUnavailable(f"{source} has been started anew"), drained=False)

    def watch(self) -> None:
        """Give up what makes no progress, and end what waited in vain for another attempt or for an earlier one's copy.

        Called by the timer.
        """
        now = self._parts.clock()
        for handoff in self._parts.handoffs:
            if now < self._due_at(handoff):
                continue
            if handoff.leg:
                self._give_up(handoff, handoff.leg, now)
            else:
                self._release.end(handoff, error=handoff.loss.error if handoff.loss else self._no_end_of_copy(handoff))

    def due_at(self) -> Iterator[float]:
        """Return when `watch` will have something to end, should nothing happen until then."""
        return map(self._due_at, self._parts.handoffs)

    def _due_at(self, handoff: Handoff) -> float:
        """Return when a handoff has waited long enough; infinite where it waits for nothing that a timer is for."""
        timers = self._parts.timers
        if handoff.leg:
            return handoff.leg.due_at(timers)
        if handoff.loss:
            return handoff.loss.at + timers.retry_s
        awaits_copy = handoff.granted is None and self._parts.handoffs.awaits_copy(handoff)
        return handoff.ordered_at + timers.progress_s if awaits_copy else math.inf

    def _no_end_of_copy(self, handoff: Handoff) -> NodeUnavailable:
        within = f"{self._parts.timers.progress_s:g} s"
        return NodeUnavailable(f"request {handoff.id}: a copy of an earlier attempt into its blocks has not ended in {within}")

    async def _verified(self, expected: ExpectedLeg) -> Answer:
        """Return what verifying a leg comes to, or what was recorded when that was given up."""
        assert expected.verifying
        await asyncio.wait({expected.verifying})
        if expected.verifying.cancelled():
            return self._parts.answers.find(expected.id) or UNKNOWN
        return expected.verifying.result()

    def _give_up(self, handoff: Handoff, leg: ExpectedLeg, now: float) -> None:
        """Lose a leg that is stuck, here or at P, or whose P is silent: the router may hear of it from this node alone."""
        timers = self._parts.timers
        if leg.verifying:
            leg.verifying.cancel()
            complaint = f"what has landed was not verified for {timers.progress_s:g} s"
        else:
            complaint = f"{leg.id.source} {leg.watch.complaint(now, timers)}"
        error = TransferTimeout(f"request {handoff.id}: {complaint}")
        self._verification.lose(handoff, error, drained=leg.verifying is not None)
        self._release.tell_lost(handoff, error)

    def _hear(self, told: LegProgress, engine_step: int) -> bool:
        found = self._parts.handoffs.expecting(told.leg)
        if found is None:
            answer = self._parts.answers.find(told.leg)
            return answer is not None and answer.outcome is not Outcome.ENDED
        handoff, expected = found
        self._verification.fill(handoff)
        expected.watch.hear(Sign(told.phase, told.queue_position, engine_step, told.bytes_sent), self._parts.clock())
        return True

    def _find(self, leg: Leg, generation: Generation) -> tuple[Handoff, ExpectedLeg] | None:
        found = self._parts.handoffs.expecting(leg)
        return found if found and found[1].extent.generation == generation else None

    def _recorded(self, leg: Leg, kind: str) -> Answer:
        known = self._parts.answers.find(leg)
        self._count_noop(kind, "late" if known else "unknown")
        return known or UNKNOWN

    def _count_noop(self, kind: str, why: str) -> None:
        self._parts.metrics.noop_messages.labels(kind, why).inc()
