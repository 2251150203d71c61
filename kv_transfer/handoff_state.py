"""The states of one handoff as the decode node sees it, and every legal move between them. Pure."""

import enum
from collections.abc import Mapping
from types import MappingProxyType


class HandoffState(enum.StrEnum):
    QUEUED = "queued"
    """Waits for blocks, a batch slot or landing space."""
    RESERVED = "reserved"
    """Holds all of them; nothing has landed in this attempt."""
    FILLING = "filling"
    """The prefill node has the ticket: pieces may land and are copied in."""
    COMPLETE = "complete"
    """Every piece is in and verified."""
    ATTACHED = "attached"
    """The engine decodes from these blocks."""
    FREED = "freed"
    """The end: nothing is held any more."""


_S = HandoffState
LEGAL_MOVES: Mapping[HandoffState, frozenset[HandoffState]] = MappingProxyType(
    {
        _S.QUEUED: frozenset({_S.RESERVED, _S.FREED}),
        # ATTACHED at once: the decode node prefills alone.
        _S.RESERVED: frozenset({_S.FILLING, _S.ATTACHED, _S.FREED}),
        # Back to RESERVED: a new attempt, on the same blocks with fresh landing space.
        _S.FILLING: frozenset({_S.COMPLETE, _S.RESERVED, _S.FREED}),
        _S.COMPLETE: frozenset({_S.ATTACHED, _S.RESERVED, _S.FREED}),
        # Back to QUEUED: preempted.
        _S.ATTACHED: frozenset({_S.QUEUED, _S.FREED}),
        _S.FREED: frozenset(),
    }
)


class IllegalMove(Exception):
    """A handoff was asked to go where its state does not lead: a defect of the caller."""


def move(before: HandoffState, after: HandoffState) -> HandoffState:
    """Return `after`. Raises IllegalMove unless the table allows it."""
    if after not in LEGAL_MOVES[before]:
        raise IllegalMove(f"a handoff cannot go from {before} to {after}")
    return after
