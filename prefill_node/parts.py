"""What a prefill node is made of, handed to each of its workers, and what it asks of decode nodes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.ticket import Leg
from twostep.engine.engine import Engine
from twostep.kv_transfer.sender import Sender
from twostep.kv_transfer.source_digests import SourceDigests
from twostep.node.background import Background
from twostep.node.config import Timers
from twostep.node.free_watch import FreeWatch
from twostep.node.handoff_messages import Answer, Done, Failed, Landed, LegProgress, Outcome
from twostep.node.leases import Leases
from twostep.node.metrics import NodeMetrics
from twostep.node.trace import Tracer
from twostep.prefill_node.destination_peers import DestinationPeers
from twostep.prefill_node.leg_record import LegRecord
from twostep.prefill_node.pushes import Pushes

MAX_ENDED_LEGS = 16384


class DestinationCalls(Protocol):
    """What a prefill node asks of a decode node. Each call raises ServingError when it is refused or not answered."""

    async def progress(self, node: NodeRef, source: NodeRef, engine_step: int, legs: Sequence[LegProgress]) -> tuple[Leg, ...]:
        """Tell how far the legs are; returns those that the decode node does not know."""

    async def landed(self, landed: Landed, *, give_up_s: float) -> None:
        """Repeat until answered."""

    def opened_for_done(self, leg: Leg) -> AbstractContextManager[None]:
        """Open the leg's `done` before it is said, so that it finds its way open."""

    async def done(self, done: Done, *, give_up_s: float) -> Answer:
        """Repeat until answered."""

    async def failed(self, failed: Failed, *, give_up_s: float) -> Outcome:
        """Repeat until answered."""


@dataclass(frozen=True, slots=True)
class Parts:
    node: NodeRef
    engine: Engine
    sender: Sender
    digests: SourceDigests
    pushes: Pushes
    peers: DestinationPeers
    destinations: DestinationCalls
    leases: Leases
    record: LegRecord
    background: Background
    metrics: NodeMetrics
    tracer: Tracer
    free_watch: FreeWatch
    timers: Timers
    clock: Clock
