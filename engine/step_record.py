"""What one step was like, in numbers: what a node's metrics and traces of its engine are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from twostep.core.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """`number` counts steps from 1; times are the engine's clock's.

    `gap_s` passed between the end of the model's last run and this one's start; None when there was nothing to do meanwhile.
    `num_prompt_tokens` counts forced tokens too; neither a prefix hit nor a handoff computes any. `num_hit_tokens` were found
    in the prefix cache, and `num_preempted` requests lost their blocks, since the last step. `token_budget` is how many
    tokens the step might have had.
    """

    number: int
    started_at: float
    duration_s: float
    gap_s: float | None
    num_requests: int
    num_decode_tokens: int
    num_prompt_tokens: int
    num_hit_tokens: int
    num_preempted: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class RunTime:
    """When a run of the model began, how long it took, and the gap before it; see `StepRecord`."""

    started_at: float
    duration_s: float
    gap_s: float | None


class RunTimer:
    """Times the runs of a model, and what passes between them. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended_at: float | None = None

    def time(self, run: Callable[[], T]) -> tuple[T, RunTime]:
        """Return what `run` returns, and its time."""
        started_at = self._clock()
        gap_s = None if self._ended_at is None else started_at - self._ended_at
        result = run()
        self._ended_at = self._clock()
        return result, RunTime(started_at, self._ended_at - started_at, gap_s)

    def rest(self) -> None:
        """There is nothing to run: what passes until the next run is no gap."""
        self._ended_at = None
