"""What a node tells about itself and its peers, in the core's terms."""

import enum
from dataclasses import dataclass, field

from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import BlockId, NodeRef
from twostep.core.pace import RatePoint, StepPace


class PeerStage(enum.Enum):
    """How far two nodes have got with each other."""

    UNKNOWN = "unknown"
    HANDSHAKING = "handshaking"
    PROVEN = "proven"
    """Bytes really moved."""
    FAILED = "failed"
    SUSPENDED = "suspended"
    """Copies of its blocks differed too often: not used until bytes have been proved to move again."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that the router names as one to exchange KV with, and where its handoff service listens."""

    node: NodeRef
    handoff_address: str


@dataclass(frozen=True, slots=True)
class PeerState:
    """`path` is what carries the bytes; `bytes_per_s` was measured by handoffs, before the first by the handshake's probe."""

    node: NodeRef
    stage: PeerStage
    reason: str = ""
    path: str = ""
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What there is to say about a loaded node beyond its name and addresses, and whether it is ready; see `Runner.kernels`."""

    not_ready_reason: str
    transport: str
    fingerprint: Fingerprint
    geometry: Geometry
    num_blocks: int
    max_prompt_tokens: int
    kernels: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's load at one moment, and its measured paces.

    `queued_tokens` are prompt tokens not yet computed, of them `waiting_tokens` are of requests that wait for memory.
    `block_hold_s` is how long a block was held lately, 0 while nobody knows. What was not measured yet is empty or None.
    """

    node: NodeRef
    not_ready_reason: str
    step: int
    num_running: int
    num_waiting: int
    queued_tokens: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    total_blocks: int
    peers: tuple[PeerState, ...] = ()
    waiting_tokens: int = 0
    block_hold_s: float = 0.0
    prefill_rates: tuple[RatePoint, ...] = ()
    step_pace: StepPace | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one owner holds: KV blocks or a piece of the landing pool, or neither while it waits.

    `attempt` is 0 where none is meant; `source` writes, `destination` is written to; `cooldown_left_s` is how long an extent
    that drains still rests; `writes_in_flight` counts those that this node has posted and not seen through.
    """

    owner: str
    phase: str
    age_s: float
    blocks: tuple[BlockId, ...] = ()
    landing_offset: int = 0
    landing_bytes: int = 0
    generation: int = 0
    attempt: int = 0
    source: str = ""
    destination: str = ""
    cooldown_left_s: float = 0.0
    writes_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """Every block and landing extent that somebody holds, recomputed from the tables."""

    node: NodeRef
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    total_blocks: int
    orphaned_blocks: int
    landing_bytes: int = 0
    landing_free_bytes: int = 0
    entries: tuple[LedgerEntry, ...] = field(default_factory=tuple)
