"""What a step costs, measured, and how many prompt tokens it may therefore compute beside its decodes."""

import math
from dataclasses import dataclass

DECAY = 0.95
"""What each measured step leaves of the weight of those before it."""
MAX_SURPRISE = 4.0
"""A step counts as at most so many times what was expected of it: one in which the machine was busy with something else
says little about the next."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes: for itself, for each row that decodes, and for each prompt token."""

    base_s: float
    decode_row_s: float
    prefill_token_s: float

    def decode_s(self, num_decodes: int) -> float:
        """Return how long a step of so many decodes and no prompt token takes."""
        return self.base_s + num_decodes * self.decode_row_s if num_decodes else 0.0

    def prefill_s(self, num_tokens: int) -> float:
        return num_tokens * self.prefill_token_s

    def prefill_tokens_within(self, step_s: float, num_decodes: int) -> float:
        """Return how many prompt tokens fit into a step of `step_s` beside its decodes; infinite while they cost nothing."""
        left_s = max(0.0, step_s - self.decode_s(num_decodes))
        return left_s / self.prefill_token_s if self.prefill_token_s else math.inf


@dataclass(frozen=True, slots=True)
class StepBounds:
    """`token_budget` is the most that a step computes, decodes included, but for `min_prefill_tokens` of waiting prompts."""

    token_budget: int
    min_prefill_tokens: int


def prefill_budget(cost: StepCost, num_decodes: int, step_s: float, bounds: StepBounds) -> int:
    """Return how many prompt tokens a step may compute so that it takes `step_s` at most, as far as the bounds allow.

    Without decodes nobody waits for the step, and it takes what the bounds allow.
    """
    most = bounds.token_budget - num_decodes
    if num_decodes:
        most = int(min(most, cost.prefill_tokens_within(step_s, num_decodes)))
    return max(most, bounds.min_prefill_tokens)


class StepMeter:
    """Learns a `StepCost`. Steps without prompt tokens tell what decodes cost, the others what prompt tokens add to that.

    Each half is forgotten by its own kind of steps only: an hour of decodes leaves what is known of prompts as it was.
    """

    def __init__(self) -> None:
        self._decodes = _Line()
        self._prefill_s = self._prefill_tokens = 0.0

    @property
    def cost(self) -> StepCost:
        base_s, row_s = self._decodes.fit()
        return StepCost(base_s, row_s, self._prefill_s / self._prefill_tokens if self._prefill_tokens else 0.0)

    def record(self, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """A step has taken `duration_s`; what took no time, on a clock that stands still, teaches nothing."""
        if duration_s <= 0:
            return
        cost = self.cost
        expected_s = cost.decode_s(num_decodes) + cost.prefill_s(num_prefill_tokens)
        is_known = cost.prefill_token_s > 0 if num_prefill_tokens else cost.decode_s(num_decodes) > 0
        counted_s = min(duration_s, MAX_SURPRISE * expected_s) if is_known else duration_s
        if num_prefill_tokens:
            self._prefill_s = self._prefill_s * DECAY + max(0.0, counted_s - cost.decode_s(num_decodes))
            self._prefill_tokens = self._prefill_tokens * DECAY + num_prefill_tokens
        else:
            self._decodes.add(num_decodes, counted_s)


class _Line:
    """The line through measured points that is least off, the latest points counting most; neither part is negative."""

    def __init__(self) -> None:
        self._weight = self._x = self._xx = self._y = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        self._weight = self._weight * DECAY + 1
        self._x = self._x * DECAY + x
        self._xx = self._xx * DECAY + x * x
        self._y = self._y * DECAY + y
        self._xy = self._xy * DECAY + x * y

    def fit(self) -> tuple[float, float]:
        """Return the line's value at 0 and its slope; all of it is at 0 while there was one `x` only."""
        if not self._weight:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread) if spread > 1e-9 * mean_x * mean_x else 0.0
        if slope * mean_x > mean_y:
            return 0.0, mean_y / mean_x
        return mean_y - slope * mean_x, slope
