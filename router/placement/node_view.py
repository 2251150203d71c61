"""What the router knows of a node, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import NodeRef
from twostep.core.kv_layout import ITEM_BYTES
from twostep.core.pace import PrefillCurve, RatePoint, StepPace
from twostep.core.turnover import Supply


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """Who a node says it is. `max_prompt_tokens` is the longest prompt it can ever take; `kernels` tells what computes."""

    ref: NodeRef
    role: str
    is_ready: bool
    not_ready_reason: str
    model: str
    fingerprint: Fingerprint
    geometry: Geometry
    transport: str
    handoff_address: str
    max_prompt_tokens: int
    version: str
    kernels: str = ""

    token_bytes: int = field(init=False, compare=False)
    """KV of one token in all layers."""
    last_share: float = field(init=False, compare=False)
    """The share of the layers that is handed off last."""
    told_fingerprint: Mapping[str, str] = field(init=False, compare=False, repr=False)
    """The fingerprint as other nodes are told it."""

    def __post_init__(self) -> None:
        shape, num_layers = self.fingerprint, max(1, self.fingerprint.num_layers)
        token_bytes = 2 * num_layers * shape.num_kv_heads * shape.head_dim * ITEM_BYTES.get(shape.dtype, 2)
        object.__setattr__(self, "token_bytes", token_bytes)
        object.__setattr__(self, "told_fingerprint", shape.as_dict())
        object.__setattr__(self, "last_share", min(1.0, self.geometry.layer_group / num_layers))


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that another one may exchange KV with."""

    ref: NodeRef
    handoff_address: str


@dataclass(frozen=True, slots=True)
class PeerState:
    """How far two nodes know each other. `path` names what carries the bytes; the speed was measured, 0 where it was not."""

    is_proven: bool
    state: str
    reason: str
    path: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's load, peers and measured paces at its last heartbeat.

    `queued_tokens` are prompt tokens not yet computed, of them `waiting_tokens` are of requests that wait for memory.
    `block_hold_s` is how long a block was held lately, 0 while nobody knows.
    """

    ref: NodeRef
    is_ready: bool
    not_ready_reason: str
    step: int = 0
    num_running: int = 0
    num_waiting: int = 0
    queued_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    total_blocks: int = 0
    peers: Mapping[NodeRef, PeerState] = field(default_factory=dict)
    waiting_tokens: int = 0
    block_hold_s: float = 0.0
    prefill_curve: PrefillCurve | None = None
    step_pace: StepPace | None = None
    paths: Mapping[NodeRef, float] = field(init=False, compare=False)
    """The peers that bytes really moved to, and how many a second."""

    def __post_init__(self) -> None:
        paths = {ref: peer.bytes_per_s for ref, peer in self.peers.items() if peer.is_proven}
        object.__setattr__(self, "paths", paths)


UNMEASURED_CURVE = PrefillCurve((RatePoint(0, 1e-4),))
UNMEASURED_STEP = StepPace(0.02, 2e-4)
UNMEASURED_BYTES_PER_S = 1e9
"""What is assumed while no node has measured anything: all are equal, and those with less to do come first."""


@dataclass(frozen=True, slots=True)
class Typical:
    """What nodes of one router have measured lately: what others are taken for until they have measured themselves."""

    curve: PrefillCurve = UNMEASURED_CURVE
    step: StepPace = UNMEASURED_STEP


@dataclass(frozen=True, slots=True)
class Memory:
    """A node's KV blocks: how many can be had now, as far as this router can tell, and how fast others come back."""

    available: int = 0
    total: int = 0
    wanted: int = 0
    """Blocks for which others wait already."""
    hold_s: float = 0.0

    def wait_s(self, num_blocks: int) -> float:
        """Return in how many seconds `num_blocks` will be free; 0 where nobody knows."""
        if num_blocks + self.wanted <= self.available or not self.total:
            return 0.0
        supply = Supply(self.available, self.total - self.available, self.hold_s or None)
        return supply.wait_s(num_blocks + self.wanted) or 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that may be chosen, with its load and paces as far as this router can tell.

    `load` counts requests, those that this router has placed and not sent yet included; at `free_at`, on the router's clock,
    all prompt tokens ahead will be computed. `paths` are the peers that bytes really moved to, and how fast, in bytes a second.
    """

    description: NodeDescription
    load: int = 0
    free_at: float = 0.0
    curve: PrefillCurve = UNMEASURED_CURVE
    is_measured: bool = False
    """Whether `curve` was measured."""
    step: StepPace = UNMEASURED_STEP
    memory: Memory = Memory()
    paths: Mapping[NodeRef, float] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    """Zone and machine; empty where nobody knows."""
    ref: NodeRef = field(init=False, compare=False)
    answer_step_s: float = field(init=False, compare=False)
    """What each token of one more answer takes, and costs the answers that are running already."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", self.description.ref)
        step_s = self.step.step_s(self.load + 1) + self.load * self.step.sequence_s
        object.__setattr__(self, "answer_step_s", step_s)

    def queue_s(self, now: float) -> float:
        """Return how long what is ahead will take to compute."""
        return max(0.0, self.free_at - now)
