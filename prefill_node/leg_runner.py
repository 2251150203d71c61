"""Runs one leg: wait for blocks, compute and push, send the rest, hand over, give everything back."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future

from twostep.core.bill import PrefillBill
from twostep.core.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    NodeUnavailable,
    ServingError,
    StaleLeg,
    TransferFailed,
    TransferTimeout,
)
from twostep.core.ticket import TokenRange
from twostep.engine.engine import Reservation
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.sender import LegReport, OutgoingLeg
from twostep.node.free_watch import CUT_SHORT
from twostep.node.handoff_messages import Answer, CellDigests, Done, Failed, Landed, Outcome
from twostep.prefill_node.leg import Phase, Prefilled, PrefillLeg
from twostep.prefill_node.mismatch import investigate
from twostep.prefill_node.parts import Parts
from twostep.prefill_node.prefix_check import check_prefix

TAKEN_OVER = frozenset({Outcome.ATTACHED, Outcome.FINISHED})
log = logging.getLogger(__name__)


class LegRunner:
    """Runs legs, one task each. `on_over` is called when a leg's blocks are free."""

    def __init__(self, parts: Parts, *, on_over: Callable[[PrefillLeg], None]) -> None:
        self._parts = parts
        self._on_over = on_over

    async def run(self, leg: PrefillLeg) -> None:
        """See a leg through. Its blocks are given back on every way; the decode node hears of a failure."""
        outcome: Prefilled | ServingError
        try:
            outcome = await self._hand_off(leg)
        except ServingError as error:
            outcome = error
            if isinstance(error, CUT_SHORT):
                self._parts.free_watch.begin(leg.request_id, leg.stopped_at)
        drained = await self._drain(leg)
        if isinstance(outcome, ChecksumMismatch):
            await investigate(self._parts, leg)
        self._give_back(leg)
        leg.over.set_result(outcome)
        if isinstance(outcome, ServingError):
            await self._tell(leg, outcome, drained=drained)

    async def _hand_off(self, leg: PrefillLeg) -> Prefilled:
        clock, request = self._parts.clock, leg.order.request
        reservation = await leg.unless_stopped(leg.admitted)
        started_at = clock()
        leg.outgoing = self._open(leg, reservation)
        leg.enter(Phase.COMPUTING)
        self._parts.engine.start(leg.request_id, attempt=leg.id.attempt, max_draws=1, timing=leg.timing)
        checking = self._parts.background.spawn(check_prefix(self._parts, leg, reservation))
        with self._parts.destinations.opened_for_done(leg.id):
            token = await leg.unless_stopped(leg.first_token)
            computed_at = clock()
            leg.enter(Phase.SENDING)
            finished = request.stop.finish_reason(token, len(request.output_tokens)) is not None
            report = await self._send_rest(leg, leg.outgoing, finished=finished)
            sent_at = clock()
            self._measure(leg, report)
            if not checking.done():
                await leg.unless_stopped(checking)
            leg.enter(Phase.AWAITING_ANSWER)
            await self._say_done(leg, token, None if finished else self._cells(leg, reservation), computed_at)
        bill = PrefillBill(
            queue_s=started_at - leg.arrived_at,
            compute_s=computed_at - started_at,
            transfer_s=report.transfer_s,
            # What ran while the first token was drawn is hidden too: a bill's parts must not overlap.
            exposed_s=min(report.exposed_s, sent_at - computed_at),
            cached_tokens=reservation.cached_tokens,
            computed_tokens=len(request.tokens) - reservation.cached_tokens,
            bytes_sent=report.bytes_sent,
            handover_s=clock() - sent_at,
        )
        return Prefilled(bill, token)

    async def _say_done(self, leg: PrefillLeg, token: int, cells: CellDigests | None, computed_at: float) -> None:
        """Hand over: return when the decode node has taken over; `cells` is unset for a request that `token` finishes."""
        now, generation = self._parts.clock(), leg.ticket.extent.generation
        done = Done(leg.id, generation, token, cells, cells is None, since_computed_s=now - computed_at)
        self._accept(leg, await leg.unless_stopped(self._parts.destinations.done(done, give_up_s=leg.deadline - now)))

    def _measure(self, leg: PrefillLeg, report: LegReport) -> None:
        if report.transfer_s > 0:
            self._parts.peers.note_handoff(leg.id.destination, report.bytes_sent, report.transfer_s)
            self._parts.metrics.handoff_bandwidth.observe(report.bytes_sent / report.transfer_s)

    def _open(self, leg: PrefillLeg, reservation: Reservation) -> OutgoingLeg:
        """Open the leg at the sender and push what the prefix cache holds."""
        control = asyncio.get_running_loop()

        def on_written(piece: Piece) -> None:
            control.call_soon_threadsafe(self._written, leg, reservation, piece)

        def on_outcome(outcome: "Future[LegReport]") -> None:
            if failure := outcome.exception():
                control.call_soon_threadsafe(self._fail, leg, failure)

        is_ring = leg.ticket.extent.num_slots < self._num_blocks(leg)
        try:
            outgoing = self._parts.sender.open(leg.ticket, reservation.table, on_written if is_ring else None)
        except ValueError as cause:
            raise TransferFailed(f"request {leg.request_id}: the ticket does not fit this node: {cause}") from cause
        outgoing.outcome.add_done_callback(on_outcome)
        self._parts.pushes.open(reservation, outgoing)
        return outgoing

    async def _send_rest(self, leg: PrefillLeg, outgoing: OutgoingLeg, *, finished: bool) -> LegReport:
        """Wait until no write is in flight; a request that is finished posts nothing more."""
        if not finished:
            sent = outgoing.finish()
            # Waiting for what is there already would take the event loop some turns, and the decode node waits for `Done`.
            return sent.result() if sent.done() else await leg.unless_stopped(asyncio.wrap_future(sent))
        if not await leg.unless_stopped(asyncio.wrap_future(outgoing.abort())):
            raise TransferFailed(f"request {leg.request_id}: a write has failed")
        return outgoing.report()

    def _cells(self, leg: PrefillLeg, reservation: Reservation) -> CellDigests:
        layers = range(self._parts.engine.runner.kv.layout.num_layers)
        digests = self._parts.digests.of(layers, leg.ticket.missing, reservation.table)
        return CellDigests(layers, range(self._num_blocks(leg)), digests)

    def _accept(self, leg: PrefillLeg, answer: Answer) -> None:
        """Return when the decode node has taken over. Raises what its answer means otherwise."""
        leg.must_tell = False
        self._parts.metrics.handoffs.labels(answer.outcome.value).inc()
        if answer.outcome in TAKEN_OVER:
            return
        if answer.outcome is Outcome.MISMATCH:
            raise ChecksumMismatch(answer.reason)
        raise StaleLeg(f"request {leg.request_id}: {leg.id.destination} says {answer.outcome.value}: {answer.reason}")

    async def _drain(self, leg: PrefillLeg) -> bool:
        """Post nothing more; returns whether every posted write is known to be done, after a bounded wait."""
        self._parts.pushes.close(leg.request_id)
        drained = True
        if leg.outgoing:
            try:
                drained = await asyncio.wait_for(asyncio.wrap_future(leg.outgoing.abort()), self._parts.timers.call_s)
            except TimeoutError:
                drained = False
                self._doubt_if_stuck(leg)
            self._parts.metrics.handoff_bytes.inc(leg.outgoing.report().bytes_sent)
        leg.drained.set_result(drained)
        return drained

    def _doubt_if_stuck(self, leg: PrefillLeg) -> None:
        """Where no write moves any more the connection may be lost without a word: nothing but a new one helps."""
        node, for_s = leg.id.destination, self._parts.timers.call_s
        if self._parts.sender.flights.are_stuck(node, for_s=for_s):
            self._parts.peers.doubt(node, f"no write to it has ended for {for_s:g} s")

    def _give_back(self, leg: PrefillLeg) -> None:
        leg.enter(Phase.ENDED)
        if leg.reservation:
            self._parts.engine.release(leg.request_id)
        self._parts.free_watch.check()
        self._on_over(leg)

    async def _tell(self, leg: PrefillLeg, error: ServingError, *, drained: bool) -> None:
        if not leg.must_tell:
            return
        self._parts.metrics.handoffs.labels("failed").inc()
        failed = Failed(leg.id, leg.ticket.extent.generation, error, drained)
        try:
            await self._parts.destinations.failed(failed, give_up_s=self._parts.timers.progress_s)
        except ServingError as unheard:
            log.warning("a failure was not heard", extra={"request": leg.request_id, "reason": unheard.message})

    def _written(self, leg: PrefillLeg, reservation: Reservation, piece: Piece) -> None:
        """Some cells of a ring lie in the landing extent: tell D, which credits their slots once its copy is verified."""
        size = self._parts.engine.runner.kv.layout.block_tokens
        start = leg.ticket.missing.start
        tokens = TokenRange(start + piece.blocks.start * size, min(start + piece.blocks.stop * size, leg.ticket.missing.end))
        digests = self._parts.digests.of(piece.layers, tokens, reservation.table)
        landed = Landed(leg.id, leg.ticket.extent.generation, CellDigests(piece.layers, piece.blocks, digests))
        if not leg.is_stopped:
            self._parts.background.spawn(self._tell_landed(leg, landed))

    async def _tell_landed(self, leg: PrefillLeg, landed: Landed) -> None:
        """D's silence ends the transfer: neither has the request run out of time, nor is this node at fault."""
        give_up_s = self._parts.timers.progress_s
        try:
            await self._parts.destinations.landed(landed, give_up_s=give_up_s)
        except (NodeUnavailable, DeadlineExceeded) as silence:
            leg.stop(TransferTimeout(f"request {leg.request_id}: no answer for {give_up_s:g} s: {silence.message}"))
        except ServingError as error:
            leg.stop(error)

    def _fail(self, leg: PrefillLeg, failure: BaseException) -> None:
        """The sender has ended the leg; unless that was our own doing, the way to the node is in doubt."""
        if isinstance(failure, ServingError) and not isinstance(failure, StaleLeg) and not leg.is_stopped:
            leg.stop(failure)
            self._parts.peers.doubt(leg.id.destination, failure.message)

    def _num_blocks(self, leg: PrefillLeg) -> int:
        return self._parts.engine.runner.kv.layout.num_blocks(len(leg.ticket.missing))
