"""What a decode node is made of, handed to each of its workers."""

from dataclasses import dataclass
from typing import Protocol

from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.ticket import Leg
from twostep.core.turnover import HoldMeter
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.receiver import Receiver
from twostep.node.answers import Answers
from twostep.node.background import Background
from twostep.node.config import Timers
from twostep.node.handoff_messages import Abort, Answer, Credit
from twostep.node.leases import Leases
from twostep.node.metrics import NodeMetrics
from twostep.node.trace import Tracer

MAX_ANSWERS = 4096


class SourceCalls(Protocol):
    """What a decode node asks of a prefill node, whatever the way there."""

    async def abort(self, abort: Abort) -> bool:
        """End a leg on P; returns whether P proves that no write of it is in flight. Bounded in time, never raises."""

    async def credit(self, credit: Credit) -> None:
        """Let P write slots of a ring again. Bounded in time, never raises."""


@dataclass(frozen=True, slots=True)
class Parts:
    node: NodeRef
    engine: Engine
    receiver: Receiver
    landing: LandingPool
    sources: SourceCalls
    handoffs: Handoffs
    tokens: TokenStreams
    leases: Leases
    answers: Answers[Leg, Answer]
    unattached_holds: HoldMeter
    """For how long blocks are held by requests whose KV is not there yet."""
    background: Background
    metrics: NodeMetrics
    tracer: Tracer
    timers: Timers
    clock: Clock
