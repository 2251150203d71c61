"""What the router knows of a node, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import NodeRef


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


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that another one may exchange KV with."""

    ref: NodeRef
    handoff_address: str


@dataclass(frozen=True, slots=True)
class PeerState:
    """How far two nodes know each other. `path` names what carries the bytes; the speed is the handshake's probe's."""

    is_proven: bool
    state: str
    reason: str
    path: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's load and peers at its last heartbeat. `queued_tokens` are prompt tokens not yet computed."""

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


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that may be chosen, with its load as far as this router can tell.

    `load` is prompt tokens ahead on a prefill node, requests on a decode node. `proven` are the peers that bytes really
    moved between.
    """

    description: NodeDescription
    load: int
    proven: frozenset[NodeRef] = frozenset()

    @property
    def ref(self) -> NodeRef:
        return self.description.ref
