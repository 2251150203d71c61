"""Who gives its blocks up when there are not enough. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from twostep.core.ids import RequestId


@dataclass(frozen=True, slots=True)
class Tenure:
    """What a request would lose with its blocks, and why it may be spared.

    `priority` is its aged one, lower being dearer; `num_lost_blocks` would have to be computed again, as nobody finds them in
    the prefix cache; `num_run_tokens` has it drawn since it last got its blocks, `num_preemptions` times were they taken.
    """

    request: RequestId
    arrival: int
    priority: int
    num_lost_blocks: int
    num_run_tokens: int
    num_preemptions: int
    is_paused: bool = False
    is_transferred: bool = False
    """Somebody reads its blocks, such as a sender: they cannot be taken."""


@dataclass(frozen=True, slots=True)
class SparePolicy:
    """A request is spared until it has drawn `min_run_tokens`, and for good after `max_preemptions`, while others are left."""

    min_run_tokens: int
    max_preemptions: int


def choose_victim(tenures: Iterable[Tenure], policy: SparePolicy) -> RequestId | None:
    """Return whom to preempt, or None where nobody's blocks can be taken.

    Paused requests first, as nobody waits for them; then whoever is not spared, by priority, by what is lost, by how often it
    was preempted before, the youngest first.
    """

    def dearness(one: Tenure) -> tuple[bool, bool, bool, int, int, int, int]:
        is_at_cap = one.num_preemptions >= policy.max_preemptions
        is_fresh = one.num_run_tokens < policy.min_run_tokens
        return (
            not one.is_paused,
            is_at_cap,
            is_fresh,
            -one.priority,
            one.num_lost_blocks,
            one.num_preemptions,
            -one.arrival,
        )

    victim = min((one for one in tenures if not one.is_transferred), key=dearness, default=None)
    return victim.request if victim else None
