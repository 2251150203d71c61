"""How fast a node computes, measured from its steps: what its prompts cost, and what one more answer does to a step. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from twostep.core.turnover import HoldMeter

EDGES = (0, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18)
"""Where the pieces of a prompt begin, in tokens: the further in, the more there is to attend to."""
HALF_LIFE_TOKENS = 1 << 15
"""After so many more tokens of a piece what was measured before counts half."""
HALF_LIFE_STEPS = 256


@dataclass(frozen=True, slots=True)
class RatePoint:
    """From `position` on in a prompt a token takes `token_s` seconds."""

    position: int
    token_s: float


class PrefillCurve:
    """What computing a part of a prompt takes, by where it lies; a piece that was not measured is like the one before it."""

    def __init__(self, points: Sequence[RatePoint]) -> None:
        """Raises ValueError unless there are points, in ascending order from 0."""
        if not points or points[0].position != 0 or any(left.position >= right.position for left, right in pairwise(points)):
            raise ValueError("a rate curve has points in ascending order, the first at 0")
        self.points = tuple(points)
        self._starts = [point.position for point in points]
        self._rates = [point.token_s for point in points]
        pieces = [(right - left) * rate for (left, right), rate in zip(pairwise(self._starts), self._rates, strict=False)]
        self._until = [0.0, *accumulate(pieces)]

    def prefill_s(self, start: int, end: int) -> float:
        """Return how many seconds the tokens [start, end) take."""
        return self._whole_s(end) - self._whole_s(start)

    def _whole_s(self, end: int) -> float:
        piece = bisect_right(self._starts, end) - 1
        return self._until[piece] + (end - self._starts[piece]) * self._rates[piece]


@dataclass(frozen=True, slots=True)
class StepPace:
    """What a step that only decodes takes: `base_s`, and `sequence_s` for each answer in it."""

    base_s: float
    sequence_s: float

    def step_s(self, num_sequences: int) -> float:
        return self.base_s + num_sequences * self.sequence_s


@dataclass(slots=True)
class _Sums:
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (tokens / HALF_LIFE_TOKENS)
        self.tokens = self.tokens * kept + tokens
        self.seconds = self.seconds * kept + seconds


class PrefillMeter:
    """Measures a node's rate curve; the latest tokens count most."""

    def __init__(self) -> None:
        self._pieces = [_Sums() for _ in EDGES]

    def record(self, start: int, end: int, seconds: float) -> None:
        """The prompt tokens [start, end) took `seconds`."""
        for sums, left, right in zip(self._pieces, EDGES, (*EDGES[1:], end), strict=True):
            num_tokens = min(end, right) - max(start, left)
            if num_tokens > 0:
                sums.add(num_tokens, seconds * num_tokens / (end - start))

    @property
    def points(self) -> tuple[RatePoint, ...]:
        """The curve's points, the first at 0; none while nothing has been measured."""
        measured = [
            RatePoint(edge, sums.seconds / sums.tokens) for edge, sums in zip(EDGES, self._pieces, strict=True) if sums.tokens
        ]
        return (RatePoint(0, measured[0].token_s), *measured[1:]) if measured else ()


@dataclass(slots=True)
class StepMeter:
    """Fits a line through the durations of decode steps by their numbers of sequences: decayed least squares."""

    _weight: float = field(default=0.0, init=False)
    _x: float = field(default=0.0, init=False)
    _y: float = field(default=0.0, init=False)
    _xx: float = field(default=0.0, init=False)
    _xy: float = field(default=0.0, init=False)

    def record(self, num_sequences: int, seconds: float) -> None:
        kept = 0.5 ** (1 / HALF_LIFE_STEPS)
        self._weight = self._weight * kept + 1
        self._x = self._x * kept + num_sequences
        self._y = self._y * kept + seconds
        self._xx = self._xx * kept + num_sequences**2
        self._xy = self._xy * kept + num_sequences * seconds

    @property
    def pace(self) -> StepPace | None:
        """None while nothing has been measured. A line that would fall, or begin below 0, is taken to be level there."""
        if not self._weight:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x**2
        slope = (self._xy / self._weight - mean_x * mean_y) / spread if spread > 1e-9 else 0.0
        slope = min(max(0.0, slope), mean_y / mean_x if mean_x else 0.0)
        return StepPace(mean_y - slope * mean_x, slope)


class BandwidthMeter:
    """How fast bytes moved on one path lately; large transfers count most."""

    def __init__(self) -> None:
        self._meter = HoldMeter()

    def record(self, num_bytes: int, seconds: float) -> None:
        if num_bytes:
            self._meter.record(num_bytes, seconds / num_bytes)

    @property
    def bytes_per_s(self) -> float:
        """0 while nothing has been measured."""
        byte_s = self._meter.mean_s
        return 1.0 / byte_s if byte_s else 0.0
