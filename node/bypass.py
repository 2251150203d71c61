"""Decides whether a request may be admitted before earlier ones for which there is no room yet: a few may, then none."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long after it first found no room, a request lets later ones pass; 0 passes are strict order."""

    max_passes: int
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class Passed:
    """One that found no room: how many have passed it, and since when it stands there."""

    num_passes: int
    waited_s: float


def may_pass(blocked: Iterable[Passed], patience: Patience) -> bool:
    """Return whether one that came after all of `blocked` may take room before them."""
    return all(one.num_passes < patience.max_passes and one.waited_s < patience.max_wait_s for one in blocked)
