"""A prefill and a decode side over one transport, turned by hand: what the handoff tests are made of."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twostep.core.fingerprint import Geometry
from twostep.core.ids import Attempt, BlockId, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.core.ticket import Leg, Ticket, TokenRange
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.receiver import Receiver
from twostep.kv_transfer.sender import Sender
from twostep.kv_transfer.source_digests import SourceDigests
from twostep.kv_transfer.transport import PeerLanding, Transport
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.kv_transfer.host_memory import HostMemory, region_of

PATIENCE_S = 60.0
MakeTransport = Callable[[NodeRef], Transport]


def node(name: str, incarnation: int = 1) -> NodeRef:
    return NodeRef(NodeId(name), Incarnation(incarnation))


def layout(block_tokens: int = 4, num_layers: int = 4, num_kv_heads: int = 2, head_dim: int = 4) -> KVLayout:
    return KVLayout(num_layers, num_kv_heads, head_dim, block_tokens, "float32")


def local_transports() -> MakeTransport:
    fabric = LocalFabric()
    return lambda ref: LocalTransport(fabric, ref)


class SourceNode:
    """P: its memory, digests and sender."""

    def __init__(self, transport: Transport, ref: NodeRef, kv: KVLayout, num_blocks: int = 64, **options: Any) -> None:
        self.ref = ref
        self.transport = transport
        self.memory = HostMemory(kv, num_blocks)
        self.digests = SourceDigests(self.memory, num_blocks)
        self.sender = Sender(transport, self.memory, **options)

    @property
    def geometry(self) -> Geometry:
        kv = self.memory.layout
        return Geometry(kv.block_tokens, 1 << 20, 2, 0, kv.num_kv_heads)


class TargetNode:
    """D: its memory, landing pool and receiver."""

    def __init__(
        self, transport: Transport, ref: NodeRef, kv: KVLayout, *, num_blocks: int = 64, landing_bytes: int = 1 << 20
    ) -> None:
        self.ref = ref
        self.transport = transport
        self.memory = HostMemory(kv, num_blocks)
        self.landing_bytes = np.zeros(landing_bytes, np.uint8)
        self.clock = ManualClock()
        self.pool = LandingPool(landing_bytes, cooldown_s=10, clock=self.clock)
        self.receiver = Receiver(transport, self.memory, region_of(self.landing_bytes), clock=self.clock)

    def landing(self) -> PeerLanding:
        return PeerLanding(self.ref, self.transport.metadata(), region_of(self.landing_bytes), 1)


@dataclass
class Pair:
    """One P and one D, connected."""

    source: SourceNode
    target: TargetNode
    tickets: list[Ticket] = field(default_factory=list)

    def grant(
        self, missing: TokenRange, table: Sequence[BlockId], *, num_slots: int | None = None, attempt: int = 1, name: str = "r"
    ) -> Ticket:
        """Let D reserve landing space and expect the leg."""
        kv = self.source.memory.layout
        slots = num_slots or kv.num_blocks(len(missing))
        leg = Leg(RequestId(name), Attempt(attempt), self.source.ref, self.target.ref)
        extent = self.target.pool.lend(kv.layer_block_bytes, kv.num_layers, slots, leg)
        assert extent is not None
        ticket = Ticket(leg, missing, b"", extent, 1, 0, kv.num_kv_heads, b"", 60.0)
        self.target.receiver.expect(leg, extent, missing, self.source.geometry, table)
        self.tickets.append(ticket)
        return ticket

    def run(self, *futures: "Future[Any]", turns: int = 1000) -> None:
        """Turn both sides until the futures are resolved; where bytes really travel, for as long as that may take."""
        give_up_at = time.monotonic() + (0 if isinstance(self.source.transport, LocalTransport) else PATIENCE_S)
        for turn in itertools.count():
            if turn >= turns and (not futures or time.monotonic() > give_up_at):
                break
            self.source.sender.turn()
            self.target.receiver.turn()
            if futures and all(future.done() for future in futures):
                return
        assert not futures, "the futures did not resolve"


def connected_pair(
    make: MakeTransport, *, source: KVLayout | None = None, target: KVLayout | None = None, **options: Any
) -> Pair:
    p, d = node("p"), node("d")
    pair = Pair(SourceNode(make(p), p, source or layout(), **options), TargetNode(make(d), d, target or layout()))
    pair.source.sender.connect(pair.target.landing())
    return pair
