"""The seam between the handoff and what moves bytes: one-sided writes from P's KV pool into D's landing pool.

Calls block, so they come from threads, never from an event loop. One thread posts and polls; others may connect and forget.
"""

import enum
from dataclasses import dataclass
from typing import Protocol

from twostep.core.ids import NodeRef
from twostep.core.kv_memory import Units as Units
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic


class WriteState(enum.Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Write:
    """One posted write. Once polled as DONE or FAILED it is over, and its name is never used again."""

    peer: NodeRef
    number: int


@dataclass(frozen=True, slots=True)
class PeerLanding:
    """Where a peer lets others write: its landing pool, and what the transport needs to reach it.

    `registration` counts the pool's registrations within the peer's incarnation.
    """

    node: NodeRef
    metadata: bytes
    region: MemoryRegion
    registration: int


class Transport(Protocol):
    @property
    def name(self) -> str:
        """Return what carries the bytes, such as "nixl" or "local"."""

    @property
    def path(self) -> str:
        """Return what is known of the way that the bytes take, such as "nixl/ucx"."""

    def traffic(self) -> Traffic:
        """Return what has been sent so far, by which the way that a write takes is known."""

    def register_landing(self, landing: MemoryRegion) -> None:
        """Let peers write into `landing`, and into nothing else. Once per transport."""

    def metadata(self) -> bytes:
        """Return what a peer needs to connect. Raises ValueError before a landing pool is registered."""

    def notifications(self) -> list[bytes]:
        """Return the notes of writes that have landed since the last call, without waiting."""

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        """Let writes read from `source`, in pieces of `unit_bytes`. Once per transport."""

    def connect(self, peer: PeerLanding) -> None:
        """Prepare everything for writes to `peer`, replacing an earlier connection to the same node.

        Raises ValueError before a source is registered, TransferFailed when the peer cannot be used.
        """

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        """Start writing source unit `i` to landing unit `i` of `peer`; its `note`, unless empty, arrives after the last byte.

        Raises ValueError, before anything is posted, for units outside the source or the landing pool; TransferFailed for
        a node that is not connected. A peer that has died shows when the write is polled.
        """

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        """Start writing `pattern` at `landing_offset` of the peer's landing pool. Raises as `post` does."""

    def poll(self, write: Write) -> WriteState:
        """Return how far the write is. FAILED proves nothing about what has landed or still will."""

    def forget(self, peer: NodeRef) -> None:
        """Drop everything kept for `peer`; writes that are still pending end as FAILED. Unknown nodes are ignored."""

    def close(self) -> None:
        """Give everything back, once no thread uses this transport any more. Idempotent; peers' writes fail from now on."""


def require_units(source_units: Units, landing_units: Units, num_source: int, num_landing: int) -> None:
    """Raise ValueError unless both lists are equally long and lie in [0, num_source) and [0, num_landing)."""
    if len(source_units) != len(landing_units) or not len(source_units):
        raise ValueError(f"{len(source_units)} source units cannot be written to {len(landing_units)} landing units")
    _require_inside(source_units, num_source, "source")
    _require_inside(landing_units, num_landing, "landing")


def _require_inside(units: Units, num_units: int, which: str) -> None:
    lowest, highest = int(units.min()), int(units.max())
    if lowest < 0 or highest >= num_units:
        raise ValueError(f"{which} units {lowest}..{highest} lie outside [0, {num_units})")
