"""What one step was like, in numbers: what a node's metrics and traces of its engine are made of."""

import math
from dataclasses import dataclass

from twostep.core.clock import Clock


@dataclass(frozen=True, slots=True)
class StepRecord:
    """`number` counts steps from 1; times are the engine's clock's.

    `gap_s` passed between the end of the model's last run and this one's start; None when there was nothing to do meanwhile.
    A device measures it by itself, everything else the engine's thread.
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


@dataclass(frozen=True, slots=True)
class Launch:
    """When a run was launched, and whether there was work for the model up to then."""

    at: float
    is_after_rest: bool


class RunTimer:
    """Times the runs of a model, and what passes between them. Used by one thread.

    One that was launched while another ran begins when that ends, as far as can be seen from here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended_at = -math.inf
        self._is_resting = True

    def launch(self) -> Launch:
        """A run is launched now."""
        launch = Launch(self._clock(), self._is_resting)
        self._is_resting = False
        return launch

    def collected(self, launch: Launch, gap_s: float | None = None) -> RunTime:
        """The next run in order has ended; `gap_s` is what the device itself says of the gap before it, if it does."""
        started_at, seen_gap_s = max(launch.at, self._ended_at), max(0.0, launch.at - self._ended_at)
        self._ended_at = self._clock()
        gap_s = None if launch.is_after_rest else seen_gap_s if gap_s is None else gap_s
        return RunTime(started_at, self._ended_at - started_at, gap_s)

    def rest(self) -> None:
        """There is nothing to run: what passes until the next run is no gap."""
        self._is_resting = True
