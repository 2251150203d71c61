"""One leg as the prefill node sends it: what has been pushed, what may be written now, and how the leg ends."""

import enum
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from twostep.core.clock import Clock
from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ids import BlockId
from twostep.core.ticket import LandingExtent, Ticket
from twostep.kv_transfer.pieces import Coverage, Piece
from twostep.kv_transfer.promise import promise
from twostep.kv_transfer.transport import Units


@dataclass(frozen=True, slots=True)
class LegReport:
    """What sending a leg took. `transfer_s` is the time with a write in flight, `exposed_s` what came after the last push."""

    bytes_sent: int
    num_writes: int
    transfer_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class UnitMap:
    """Where a leg's cells lie: in P's pool of `num_pool_blocks` blocks a layer, and in D's landing extent.

    `blocks` are P's blocks of the missing range; `first_unit` is where the extent starts, in units of the landing pool.
    """

    blocks: tuple[BlockId, ...]
    num_pool_blocks: int
    first_unit: int
    num_slots: int

    def units(self, piece: Piece) -> tuple[Units, Units]:
        """Return source and landing units of the piece's cells, layer by layer."""
        layers = np.arange(piece.layers.start, piece.layers.stop, dtype=np.int32)[:, None]
        slots = np.arange(piece.blocks.start, piece.blocks.stop, dtype=np.int32) % self.num_slots
        sources = np.array(self.blocks[piece.blocks.start : piece.blocks.stop], np.int32)
        source_units = layers * np.int32(self.num_pool_blocks) + sources
        landing_units = np.int32(self.first_unit) + layers * np.int32(self.num_slots) + slots
        return source_units.ravel(), landing_units.ravel()


class PushPlan:
    """Decides what may be written when. Pure.

    Every cell goes out exactly once. In a ring a block waits until its slot has been credited; a leg that is held goes out
    only when all of it is there.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_slots: int, *, max_cells: int, held: bool = False) -> None:
        self._pushed = Coverage(num_layers, num_blocks)
        self._num_slots = num_slots
        self._max_cells = max_cells
        self._held = held and num_slots >= num_blocks
        self._credited = [0] * num_layers
        self._waiting: deque[Piece] = deque()

    def push(self, piece: Piece) -> None:
        """Add cells whose KV is in place. Raises ValueError when one lies outside the leg or was pushed before."""
        self._pushed.add(piece)
        self._waiting.append(piece)
        if self._held and not self._pushed.num_missing:
            self._waiting = deque([self._pushed.whole])
            self._held = False

    def credit(self, layers: range, end_block: int) -> None:
        """Allow the slots of all blocks before `end_block` to be written again. An older credit changes nothing."""
        for layer in layers:
            self._credited[layer] = max(self._credited[layer], end_block)

    def take(self) -> Piece | None:
        """Return the next cells to write, in order of pushing, or None when nothing may be written now."""
        if self._held:
            return None
        for index, piece in enumerate(self._waiting):
            end = min(piece.blocks.stop, self._num_slots + min(self._credited[layer] for layer in piece.layers))
            if end > piece.blocks.start:
                return self._cut(index, end)
        return None

    def drop(self) -> None:
        """Write nothing more."""
        self._waiting.clear()

    @property
    def num_unpushed(self) -> int:
        return self._pushed.num_missing

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def _cut(self, index: int, end: int) -> Piece:
        piece = self._waiting[index]
        first = next(Piece(piece.layers, range(piece.blocks.start, end)).split(self._max_cells))
        if first.blocks.stop == piece.blocks.stop:
            del self._waiting[index]
        else:
            self._waiting[index] = Piece(piece.layers, range(first.blocks.stop, piece.blocks.stop))
        return first


class _Phase(enum.Enum):
    OPEN = "open"
    FINISHING = "finishing"
    ENDING = "ending"
    """Failed or aborted: nothing more is posted, the posted writes are still to be seen through."""
    OVER = "over"


class OutgoingLeg:
    """One leg on its way out. Opened by `Sender.open`; push, credit, finish and abort may come from any thread.

    Ends exactly once: `outcome` gets the report, or TransferFailed when a write failed, or StaleLeg after an abort.
    """

    def __init__(
        self,
        ticket: Ticket,
        plan: PushPlan,
        units: UnitMap,
        *,
        wake: Callable[[], None],
        clock: Clock,
        on_written: Callable[[Piece], None] | None,
    ) -> None:
        self.ticket = ticket
        self.units = units
        self.outcome: Future[LegReport] = promise()
        self.on_written = on_written
        self._plan = plan
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = _Phase.OPEN
        self._failure: TransferFailed | None = None
        self._drained: Future[bool] = promise()
        self._num_in_flight = 0
        self._all_done = True
        self._meter = _Meter()

    def push(self, layers: range, blocks: range) -> None:
        """Send the KV of `blocks` (P's, counted in the missing range) in `layers`, which is in place from now on.

        Raises ValueError for cells outside the leg or pushed before, StaleLeg when the leg takes no more pushes.
        """
        with self._lock:
            if self._phase is not _Phase.OPEN:
                raise StaleLeg(f"request {self.ticket.leg.request}: the leg is {self._phase.value}, nothing more can be pushed")
            self._plan.push(Piece(layers, blocks))
            self._meter.last_push_s = self._clock()
        self._wake()

    def credit(self, layers: range, end_block: int) -> None:
        """Tell that D has copied all blocks of `layers` before `end_block` out of the ring."""
        with self._lock:
            self._plan.credit(layers, end_block)
        self._wake()

    def finish(self) -> "Future[LegReport]":
        """Return `outcome`, which resolves when every write is done. Raises ValueError when not everything was pushed."""
        with self._lock:
            if self._plan.num_unpushed and self._phase is _Phase.OPEN:
                raise ValueError(f"request {self.ticket.leg.request}: {self._plan.num_unpushed} cells were never pushed")
            if self._phase is _Phase.OPEN:
                self._phase = _Phase.FINISHING
        self._wake()
        return self.outcome

    def abort(self) -> "Future[bool]":
        """Post nothing more. The future tells, once no write is in flight, whether every posted write reported DONE."""
        with self._lock:
            self._end(StaleLeg(f"request {self.ticket.leg.request}: the leg was aborted"))
        self._wake()
        return self._drained

    def take(self) -> Piece | None:
        """Return the next piece to post, counted as in flight from now on. Sender thread only, like all that follow."""
        with self._lock:
            piece = self._plan.take()
            if piece is not None:
                self._meter.begin(self._clock(), self._num_in_flight)
                self._num_in_flight += 1
            return piece

    def not_posted(self, cause: TransferFailed) -> None:
        """A taken piece could not be posted: nothing of it is in flight, and the leg has failed."""
        with self._lock:
            self._landed(0)
            self._end(cause)

    def done(self, num_bytes: int) -> None:
        with self._lock:
            self._landed(num_bytes)

    def failed(self, cause: TransferFailed) -> None:
        """A posted write has failed: what became of its bytes is unknown."""
        with self._lock:
            self._landed(0)
            self._all_done = False
            self._end(cause)

    def settle(self) -> bool:
        """Resolve the futures if the leg has nothing left to do; return whether it is over."""
        with self._lock:
            if self._phase is _Phase.OVER:
                return True
            if self._phase is _Phase.OPEN or self._num_in_flight or self._plan.has_waiting:
                return False
            self._phase = _Phase.OVER
        if not self.outcome.done():
            if self._failure is None:
                self.outcome.set_result(self._meter.report())
            else:
                self.outcome.set_exception(self._failure)
        self._drained.set_result(self._all_done)
        return True

    def give_up(self, cause: TransferFailed) -> None:
        """The sender's thread is gone: end the leg without looking at its writes, as not drained if there were any."""
        with self._lock:
            self._end(cause)
            self._all_done = self._all_done and not self._num_in_flight
            self._num_in_flight = 0
        self.settle()

    def _landed(self, num_bytes: int) -> None:
        self._num_in_flight -= 1
        self._meter.end(self._clock(), self._num_in_flight, num_bytes)

    def _end(self, cause: TransferFailed) -> None:
        if self._phase in (_Phase.OPEN, _Phase.FINISHING):
            self._phase = _Phase.ENDING
            self._failure = cause
            self._plan.drop()


class _Meter:
    """Adds up what a leg's bill needs."""

    def __init__(self) -> None:
        self.last_push_s = 0.0
        self._busy_since_s = 0.0
        self._busy_s = 0.0
        self._last_done_s = 0.0
        self._bytes = 0
        self._writes = 0

    def begin(self, now_s: float, num_in_flight: int) -> None:
        if not num_in_flight:
            self._busy_since_s = now_s

    def end(self, now_s: float, num_in_flight: int, num_bytes: int) -> None:
        self._bytes += num_bytes
        self._writes += 1
        self._last_done_s = now_s
        if not num_in_flight:
            self._busy_s += now_s - self._busy_since_s

    def report(self) -> LegReport:
        exposed = max(0.0, self._last_done_s - self.last_push_s) if self._writes else 0.0
        return LegReport(self._bytes, self._writes, self._busy_s, exposed)


def first_unit(extent: LandingExtent, unit_bytes: int) -> int:
    """Return where the extent starts in units of the landing pool. Raises ValueError when it is not aligned."""
    if extent.offset % unit_bytes:
        raise ValueError(f"the extent starts at byte {extent.offset}, not at a multiple of {unit_bytes}")
    return extent.offset // unit_bytes
