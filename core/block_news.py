"""What a node tells of its prefix cache: which blocks can be hit since a router last heard of it, and which no more."""

from dataclasses import dataclass

from twostep.core.ids import BlockHash


@dataclass(frozen=True, slots=True)
class BlockNews:
    """What the events `[first, next)` come to: `stored` blocks can be hit after them, `evicted` ones cannot.

    Events are numbered from 0 within one incarnation. A snapshot holds everything that can be hit, whatever was known before.
    """

    first: int
    next: int
    stored: tuple[BlockHash, ...] = ()
    evicted: tuple[BlockHash, ...] = ()
    is_snapshot: bool = False
