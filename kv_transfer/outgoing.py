"""One leg as the prefill node sends it: from the first push to the one way in which it ends."""

import enum
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from twostep.core.clock import Clock
from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ticket import Ticket
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.promise import promise
from twostep.kv_transfer.push_plan import PushPlan, UnitMap


@dataclass(frozen=True, slots=True)
class LegReport:
    """What sending a leg took. `transfer_s` is the time with a write in flight, `exposed_s` what came after the last push."""

    bytes_sent: int
    num_writes: int
    transfer_s: float
    exposed_s: float


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
        """Tell that D has copied all blocks of `layers` before `end_block` out of the ring; ValueError outside the leg."""
        with self._lock:
            self._plan.credit(layers, end_block)
        self._wake()

    def finish(self) -> "Future[LegReport]":
        """Return `outcome`, which resolves when every write is done, and has when all are done already.

        Raises ValueError when not everything was pushed.
        """
        with self._lock:
            if self._plan.num_unpushed and self._phase is _Phase.OPEN:
                raise ValueError(f"request {self.ticket.leg.request}: {self._plan.num_unpushed} cells were never pushed")
            if self._phase is _Phase.OPEN:
                self._phase = _Phase.FINISHING
        self.settle()
        self._wake()
        return self.outcome

    def abort(self) -> "Future[bool]":
        """Post nothing more. The future tells, once no write is in flight, whether every posted write reported DONE."""
        with self._lock:
            self._end(StaleLeg(f"request {self.ticket.leg.request}: the leg was aborted"))
        self._wake()
        return self._drained

    @property
    def num_in_flight(self) -> int:
        """Return how many writes are posted and not known to be done."""
        return self._num_in_flight

    def report(self) -> LegReport:
        """Return what sending has taken so far; complete once the leg is over."""
        return self._meter.report()

    def take(self) -> Piece | None:
        """Return the next piece to post, counted as in flight from now on. Sender thread only, like what follows."""
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
        """Resolve the futures if the leg has nothing left to do; return whether it is over. From any thread."""
        with self._lock:
            if self._phase is _Phase.OVER:
                return True
            if self._phase is _Phase.OPEN or self._num_in_flight or self._plan.has_waiting:
                return False
            self._phase = _Phase.OVER
        if not self.outcome.done():
            if self._failure is None:
                self.outcome.set_result(self.report())
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
        self._writes += num_bytes > 0
        self._last_done_s = now_s
        if not num_in_flight:
            self._busy_s += now_s - self._busy_since_s

    def report(self) -> LegReport:
        exposed = max(0.0, self._last_done_s - self.last_push_s) if self._writes else 0.0
        return LegReport(self._bytes, self._writes, self._busy_s, exposed)
