"""D's promise to one prefill: which tokens are missing, where their KV may land, and for how long."""

from dataclasses import dataclass

from twostep.core.ids import Attempt, Generation, NodeRef, RequestId


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Positions [start, end) of a sequence."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LandingExtent:
    """A contiguous piece of D's landing pool, lent to one (attempt, source rank).

    Inside, P's blocks of the missing range lie as `[layer][slot][kv_head][token][k|v][dim]`; block `i` of the range uses
    slot `i % num_slots`. With fewer slots than blocks the extent is a ring and P needs a credit before it writes a slot again.
    """

    offset: int
    num_bytes: int
    num_slots: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class Leg:
    """Names one node pair's part of one attempt; stands in every handoff message."""

    request: RequestId
    attempt: Attempt
    source: NodeRef
    destination: NodeRef
    source_rank: int = 0
    destination_rank: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What D grants to P. `missing.start` is block-aligned on both sides; `remaining_s` counts from when it was issued."""

    leg: Leg
    missing: TokenRange
    token_digest: bytes
    extent: LandingExtent
    registration: int
    first_head: int
    end_head: int
    cache_salt: bytes
    remaining_s: float
    num_choices: int = 1
