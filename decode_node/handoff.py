"""One request on a decode node, over all its attempts: what it holds, how far its handoff is, and what goes onto its bill."""

import asyncio
import enum
import math
from dataclasses import dataclass, field

from twostep.core.clock import Clock
from twostep.core.errors import ServingError
from twostep.core.ids import RequestId
from twostep.core.request import Timing
from twostep.core.ticket import LandingExtent, Leg, TokenRange
from twostep.decode_node.bill_meter import BillMeter
from twostep.decode_node.orders import Granted, ReserveOrder
from twostep.decode_node.progress import ProgressWatch
from twostep.engine.engine import Prepared, Reservation
from twostep.kv_transfer.handoff_state import HandoffState, move
from twostep.node.config import Timers
from twostep.node.handoff_messages import Answer
from twostep.node.trace import Tracer


@dataclass(slots=True, eq=False)
class ExpectedLeg:
    """What one prefill node fills in one attempt.

    `verifying` runs from P's terminal message, which came at `done_at`, until that is answered; repeats join it.
    """

    id: Leg
    extent: LandingExtent
    missing: TokenRange
    num_bytes: int
    watch: ProgressWatch
    verifying: asyncio.Task[Answer] | None = None
    done_at: float = math.inf

    def due_at(self, timers: Timers) -> float:
        """Return when it is to be given up, unless it moves or, once P has said its last word, is verified before."""
        return self.done_at + timers.progress_s if self.verifying else self.watch.due_at(timers)


@dataclass(frozen=True, slots=True)
class Loss:
    """The leg was lost; the blocks wait for the router's next attempt since `at`."""

    error: ServingError
    at: float


class WhyPaused(enum.StrEnum):
    """What keeps a request paused."""

    UNREAD = "unread"
    """Its router leaves too many of its tokens in the stream."""
    HELD = "held"
    """Its router has too many of them waiting for its client."""


@dataclass(slots=True)
class Pause:
    """The request draws nothing since `since`: its tokens are not taken."""

    since: float
    why: set[WhyPaused] = field(default_factory=set)


class Handoff:
    """A request that this node serves alone is one too, without a leg. Changed by the control thread only.

    `reservation` are its KV blocks, kept over attempts; `leg` is the current attempt's part of the handoff; `quiet` is
    pending while a copy of an earlier leg into these blocks may still be running.
    """

    def __init__(self, order: ReserveOrder, prepared: Prepared, tracer: Tracer, clock: Clock) -> None:
        now = clock()
        self.order = order
        self.prepared = prepared
        self.ordered_at, self.deadline = now, now + order.timing.remaining_s
        self.state = HandoffState.QUEUED
        self.reservation: Reservation | None = None
        self.leg: ExpectedLeg | None = None
        self.quiet: asyncio.Future[None] | None = None
        self.granted: Granted | None = None
        self.error: ServingError | None = None
        self.loss: Loss | None = None
        self.is_last_word_said = False
        """Whether the router has been told how the current attempt ended."""
        self.pause: Pause | None = None
        self.changed = asyncio.Event()
        self.position = 0
        self.lacking = ""
        """What it was found to wait for when it was tried last."""
        self.next_index = len(order.request.output_tokens)
        self.meter = BillMeter(now)
        self._tracer = tracer
        self.trace(self.state)

    @property
    def id(self) -> RequestId:
        return self.order.request.id

    @property
    def is_over(self) -> bool:
        return self.state is HandoffState.FREED

    @property
    def is_quiet(self) -> bool:
        return self.quiet is None or self.quiet.done()

    def timing(self, now: float) -> Timing:
        """Return how old the request is, and what is left of its time."""
        return Timing(self.order.timing.age_s + now - self.ordered_at, self.deadline - now)

    def move_to(self, state: HandoffState) -> None:
        """Raises IllegalMove when the table of moves does not hold the move."""
        self.state = move(self.state, state)
        if self.is_over:
            self._tracer.leave(self.id, self.order.attempt)
        else:
            self.trace(state)
        self.changed.set()

    def trace(self, phase: str) -> None:
        """Note for whoever reads the node's trace what the request is at."""
        self._tracer.enter(self.id, self.order.attempt, phase, self.order.traceparent)

    def renew(self, order: ReserveOrder, now: float) -> None:
        """Go back to waiting, on the same blocks, for another attempt."""
        if self.state is HandoffState.FILLING:
            self.move_to(HandoffState.RESERVED)
        self._tracer.leave(self.id, self.order.attempt)
        self.order, self.granted, self.loss, self.is_last_word_said = order, None, None, False
        self.trace("queued again")
        self.meter = BillMeter(now)
        self.ordered_at, self.deadline = now, now + order.timing.remaining_s
        self.changed.set()

    def set_position(self, position: int) -> None:
        """Note the place in the queue, 0 being next, and tell whoever watches."""
        if position != self.position:
            self.position = position
            self.changed.set()
