"""The decode node's half of the handoff: copies pieces in as they land and compares the copies, on a thread of its own."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from twostep.core.clock import Clock
from twostep.core.digest import Digests
from twostep.core.errors import ServingError, StaleLeg, TransferFailed
from twostep.core.fingerprint import Geometry
from twostep.core.ids import BlockId
from twostep.core.kv_memory import KVMemory
from twostep.core.memory import MemoryRegion
from twostep.core.threads import OWN_THREADS, Pause, Threads
from twostep.core.ticket import LandingExtent, Leg, TokenRange
from twostep.kv_transfer.incoming import IncomingLeg, Verdict
from twostep.kv_transfer.landing import source_layout
from twostep.kv_transfer.notes import PROBE_NOTE, LandedNote, decode_note
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.promise import promise
from twostep.kv_transfer.transport import Transport

__all__ = ["Receiver", "Verdict"]

MAX_COPY_BYTES = 4 << 20
"""One copy is cut to this size so that a `forget` never waits longer than for one of them."""
MAX_EARLY_NOTES = 1024
POLL_S = 200e-6
MAX_POLL_S = 2e-3
"""A look costs what computes on the same core some 70 us. What comes after a pause waits for at most a tenth of that pause."""
IDLE_POLL_S = 10e-3
"""Transports without a thread of their own make progress, a new peer's first connection too, only while polled."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReceiverCounts:
    """What happened to notifications and copies since the start."""

    notes: int = 0
    probes: int = 0
    repeated_notes: int = 0
    stale_notes: int = 0
    bad_notes: int = 0
    lost_early_notes: int = 0
    recopied_claims: int = 0
    mismatched_claims: int = 0


class Receiver:
    """Receives legs through `transport` into the KV blocks of `memory`; `landing` is the only memory peers write to."""

    def __init__(
        self,
        transport: Transport,
        memory: KVMemory,
        landing: MemoryRegion,
        *,
        max_copy_bytes: int = MAX_COPY_BYTES,
        clock: Clock = time.monotonic,
        threads: Threads = OWN_THREADS,
    ) -> None:
        self.counts = ReceiverCounts()
        self._transport = transport
        self._memory = memory
        self._landing = landing
        self._max_copy_bytes = max_copy_bytes
        self._clock = clock
        self._legs: dict[Leg, IncomingLeg] = {}
        self._early: deque[LandedNote] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._last_news_s = clock()
        self._fault: TransferFailed | None = None
        self._lock = threading.Lock()
        self._loop = threads.loop("kv-receiver", self.turn, self._give_up)
        transport.register_landing(landing)

    def start(self) -> None:
        """Start the thread. Tests may call `turn` themselves instead."""
        self._loop.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread and every leg that is still open; returns whether the thread has ended in time.

        While it has not, it may still be using the transport.
        """
        has_ended = self._loop.stop(timeout_s)
        self._give_up(TransferFailed("the receiver has stopped"))
        return has_ended

    def expect(self, leg: Leg, extent: LandingExtent, missing: TokenRange, source: Geometry, table: Sequence[BlockId]) -> None:
        """Begin to copy `leg` in, as it lands in `extent`; `table` is the request's whole block table here.

        Raises ValueError when extent or table do not fit the range and the source's geometry, TransferFailed after a fault.
        """
        layout = source_layout(self._memory.layout, source)
        num_slots = extent.num_slots
        if num_slots < 1 or extent.num_bytes != layout.num_layers * num_slots * layout.layer_block_bytes or not len(missing):
            raise ValueError(f"{extent} does not fit {missing} in blocks of {layout.block_tokens} tokens")
        if len(table) < self._memory.layout.num_blocks(missing.end):
            raise ValueError(f"{len(table)} blocks do not hold {missing.end} tokens")
        memory = self._landing.slice(extent.offset, extent.num_bytes)
        incoming = IncomingLeg(leg, extent, memory, missing, layout, table)
        self._call(lambda: self._expect(incoming))

    def landed(self, leg: Leg, piece: Piece, digests: Digests) -> "Future[Verdict]":
        """Verify a written piece of a ring, digests [layer, block]; credit the source up to `verified_end` when it is ok."""
        return self._ask(lambda: self._known(leg).claim(piece, digests))

    def finish(self, leg: Leg, digests: Digests) -> "Future[Verdict]":
        """Copy whatever no notification announced, and verify every cell against `digests` [layer, P's block].

        The future raises StaleLeg for a leg that is not, or no longer, expected; ValueError for digests that do not fit.
        """
        return self._ask(lambda: self._known(leg).claim_all(digests))

    def forget(self, leg: Leg) -> "Future[None]":
        """End a leg, known or not. When the future resolves, no copy of it is running: its KV blocks may be freed."""
        forgotten: Future[None] = promise()
        with self._lock:
            if self._fault is None:
                self._inbox.append(lambda: self._forget(leg, forgotten))
            else:
                forgotten.set_result(None)
        self._loop.wake()
        return forgotten

    @property
    def fault(self) -> TransferFailed | None:
        """Return why this receiver copies no more, or None while it does."""
        return self._fault

    def turn(self) -> Pause:
        """Take in calls and notifications, then make at most one copy, for the leg whose turn it is. Never waits."""
        has_news = self._take_inbox() + self._take_notes()
        if self._advance_one() or has_news:
            self._last_news_s = self._clock()
            return 0
        quiet_s = self._clock() - self._last_news_s
        return min(max(POLL_S, quiet_s / 10), MAX_POLL_S if self._legs else IDLE_POLL_S)

    def _advance_one(self) -> bool:
        leg = next((leg for leg in self._legs.values() if leg.has_work), None)
        if leg is None:
            return False
        leg.advance(self._memory, max(1, self._max_copy_bytes // leg.cell_bytes), self._clock)
        # To the end of the line: legs take turns, one copy each.
        self._legs[leg.leg] = self._legs.pop(leg.leg)
        return True

    def _take_inbox(self) -> int:
        calls = len(self._inbox)
        for _ in range(calls):
            self._inbox.popleft()()
        return calls

    def _take_notes(self) -> int:
        payloads = self._transport.notifications()
        self.counts.notes += len(payloads)
        for payload in payloads:
            try:
                self._take_note(payload)
            except ValueError as cause:
                self.counts.bad_notes += 1
                log.warning("a notification was ignored", extra={"reason": str(cause)})
        return len(payloads)

    def _take_note(self, payload: bytes) -> None:
        if payload == PROBE_NOTE:
            self.counts.probes += 1
        else:
            self._hear(decode_note(payload))

    def _hear(self, note: LandedNote) -> None:
        leg = self._legs.get(note.leg)
        if leg is None:
            self._keep_early(note)
        elif leg.extent.generation != note.generation:
            self.counts.stale_notes += 1
        elif not leg.hear(note.piece):
            self.counts.repeated_notes += 1

    def _keep_early(self, note: LandedNote) -> None:
        self._early.append(note)
        if len(self._early) > MAX_EARLY_NOTES:
            self._early.popleft()
            self.counts.lost_early_notes += 1

    def _expect(self, leg: IncomingLeg) -> None:
        before = self._legs.get(leg.leg)
        if before:
            before.end("the leg was expected anew")
        self._legs[leg.leg] = leg
        mine = [note for note in self._early if note.leg == leg.leg]
        self._early = deque(note for note in self._early if note.leg != leg.leg)
        for note in mine:
            self._hear(note)

    def _forget(self, leg: Leg, forgotten: "Future[None]") -> None:
        known = self._legs.pop(leg, None)
        if known:
            known.end("the leg has ended")
        forgotten.set_result(None)

    def _known(self, leg: Leg) -> IncomingLeg:
        known = self._legs.get(leg)
        if known is None:
            raise StaleLeg(f"request {leg.request}, attempt {leg.attempt}: no such leg is expected here")
        return known

    def _ask(self, claim: "Callable[[], Future[Verdict]]") -> "Future[Verdict]":
        answer: Future[Verdict] = promise()
        self._call(lambda: self._start_claim(claim, answer))
        return answer

    def _start_claim(self, claim: "Callable[[], Future[Verdict]]", answer: "Future[Verdict]") -> None:
        try:
            claim().add_done_callback(lambda verdict: self._answer(verdict, answer))
        except (ServingError, ValueError) as cause:
            answer.set_exception(cause)

    def _answer(self, verdict: "Future[Verdict]", answer: "Future[Verdict]") -> None:
        failure = verdict.exception()
        if failure:
            answer.set_exception(failure)
            return
        result = verdict.result()
        self.counts.recopied_claims += result.num_recopies > 0
        self.counts.mismatched_claims += not result.ok
        answer.set_result(result)

    def _call(self, call: Callable[[], Any]) -> None:
        with self._lock:
            if self._fault:
                raise self._fault
            self._inbox.append(call)
        self._loop.wake()

    def _give_up(self, cause: Exception) -> None:
        """End everything that is open: whoever waits must not wait for a thread that is gone."""
        fault = cause if isinstance(cause, TransferFailed) else TransferFailed(f"the receiver has failed: {cause}")
        fault.__cause__ = None if fault is cause else cause
        with self._lock:
            self._fault = fault
        self._take_inbox()
        for leg in self._legs.values():
            leg.end(fault.message)
        self._legs.clear()
