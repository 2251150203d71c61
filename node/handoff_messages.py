"""The messages of the handoff between a prefill and a decode node, in the core's terms."""

import enum
from dataclasses import dataclass

from twostep.core.digest import Digests
from twostep.core.errors import ServingError
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Generation, NodeRef
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import Leg


class Outcome(enum.Enum):
    """What became of a leg, by D's word."""

    UNKNOWN_LEG = "unknown_leg"
    ATTACHED = "attached"
    FINISHED = "finished"
    MISMATCH = "mismatch"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Answer:
    """D's answer to a terminal message; the same one however often it is asked."""

    outcome: Outcome
    reason: str = ""
    mismatched_blocks: int = 0


@dataclass(frozen=True, slots=True)
class CellDigests:
    """Digests uint64 [layer, block] of some cells of the missing range; blocks are P's, counted within it."""

    layers: range
    blocks: range
    digests: Digests


@dataclass(frozen=True, slots=True)
class Done:
    """All writes of the leg are done. When `finished`, the first token ended the request and no KV is needed.

    `since_computed_s` is the time from the first token, with which the prefill ends, to this message.
    """

    leg: Leg
    generation: Generation
    first_token: int
    cells: CellDigests | None = None
    finished: bool = False
    since_computed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The leg failed on P; when `drained`, every posted write is done."""

    leg: Leg
    generation: Generation
    error: ServingError
    drained: bool


@dataclass(frozen=True, slots=True)
class Landed:
    """The writes of these cells of a ring extent are done."""

    leg: Leg
    generation: Generation
    cells: CellDigests


@dataclass(frozen=True, slots=True)
class Credit:
    """In these layers all blocks before `end_block` have been copied out: their slots may be written again."""

    leg: Leg
    generation: Generation
    layers: range
    end_block: int


@dataclass(frozen=True, slots=True)
class LegProgress:
    """Where a leg stands on P."""

    leg: Leg
    phase: str
    queue_position: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """D no longer wants the leg. `answer` is what it says to everything about it from now on."""

    leg: Leg
    generation: Generation
    answer: Answer


class AbortState(enum.Enum):
    """P's answer to an abort; only `DRAINED` proves that no write of the leg is in flight."""

    UNKNOWN = "unknown"
    DRAINED = "drained"
    NOT_DRAINED = "not_drained"


@dataclass(frozen=True, slots=True)
class Hello:
    """What P tells of itself before it asks for a place to write to."""

    node: NodeRef
    fingerprint: Fingerprint
    geometry: Geometry
    handoff_address: str
    transport: str


@dataclass(frozen=True, slots=True)
class HelloReply:
    """D's answer to a hello: its landing pool, how to reach it, and where in it the peer's probe goes.

    `generation` is that of the newest loan of landing space.
    """

    node: NodeRef
    fingerprint: Fingerprint
    geometry: Geometry
    transport: str
    transport_metadata: bytes
    landing: MemoryRegion
    registration: int
    probe_offset: int
    probe_bytes: int
    generation: Generation
