"""Where a rate will be in a while: judged by what would have been enough so far, at the least cost. Pure.

There are a few ways to look ahead: a level that follows what is seen more or less quickly (exponential smoothing), a level
with a trend (Holt 1957), the highest level of the last while. Each is tried on what has been seen: how much would have had to
be added, or by how much to be multiplied, so that `caution` of all that arrived had found enough? The cheapest one is taken,
but no more than a load can have grown to by then.
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

TREND_LASTS_S = 300.0
"""A trend is taken to go on for so long, and no longer."""
DOUBLES_S = 800.0
"""A load is taken to grow by no more than the highest that was seen in so long; found by simulation."""
FEW = 8
LEVEL_S = 30.0


@dataclass(frozen=True, slots=True)
class Point:
    at_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """`level` is what it is now; with `enough` there would have been enough as often as was asked."""

    level: float
    enough: float


def forecast(points: Sequence[Point], horizon_s: float, *, caution: float) -> Forecast:
    """Return where `points`, in order of time, will be `horizon_s` after the last. Few points are taken as they are."""
    if not points:
        return Forecast(0.0, 0.0)
    level = _levels(points, LEVEL_S)[-1]
    pairs = _pairs(points, horizon_s)
    if len(pairs) < FEW:
        return Forecast(level, max(level, *(point.value for point in points)))
    tried = [_tried(way(points, horizon_s), points, pairs, caution) for way in WAYS]
    _, cheapest = min(one for both in tried for one in both)
    most = (1 + horizon_s / DOUBLES_S) * max(point.value for point in points)
    return Forecast(level, min(cheapest, most))


def _tried(
    made: Sequence[float], points: Sequence[Point], pairs: Sequence[tuple[int, int]], caution: float
) -> list[tuple[float, float]]:
    """Return for an added and for a multiplied margin what it would have cost on average, and what it says is enough now."""
    weighed = [(points[came].value - made[at], points[came].value) for at, came in pairs]
    added = _quantile(weighed, caution)
    plain = [max(0.0, made[at] + added) for at, _ in pairs]
    found = [(sum(plain) / len(plain), max(0.0, made[-1] + added))]
    if all(made[at] > 0 for at, _ in pairs):
        factor = _quantile([(points[came].value / made[at], points[came].value) for at, came in pairs], caution)
        found.append((factor * sum(made[at] for at, _ in pairs) / len(pairs), factor * made[-1]))
    return found


def _quantile(weighed: Sequence[tuple[float, float]], share: float) -> float:
    """Return the smallest value that is not exceeded by values with `share` of all the weight."""
    ordered = sorted(weighed)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]


def _pairs(points: Sequence[Point], horizon_s: float) -> list[tuple[int, int]]:
    """Return for each point, by its place, the one that came `horizon_s` later."""
    times = [point.at_s for point in points]
    found = [(at, bisect.bisect_left(times, times[at] + horizon_s)) for at in range(len(times))]
    return [(at, came) for at, came in found if came < len(times)]


def _levels(points: Sequence[Point], level_s: float) -> list[float]:
    level = points[0].value
    levels = [level]
    for before, point in pairwise(points):
        passed_s = point.at_s - before.at_s
        level += passed_s / (level_s + passed_s) * (point.value - level)
        levels.append(level)
    return levels


def _level(level_s: float) -> "Way":
    return lambda points, _: _levels(points, level_s)


def _trend(level_s: float, trend_s: float) -> "Way":
    def look_ahead(points: Sequence[Point], horizon_s: float) -> list[float]:
        level, trend = points[0].value, 0.0
        made = [level]
        reach_s = min(horizon_s, TREND_LASTS_S)
        for before, point in pairwise(points):
            passed_s = point.at_s - before.at_s
            follow, turn = passed_s / (level_s + passed_s), passed_s / (trend_s + passed_s)
            moved = follow * point.value + (1 - follow) * (level + trend * passed_s)
            trend += turn * ((moved - level) / passed_s - trend)
            level = moved
            made.append(max(0.0, level + trend * reach_s))
        return made

    return look_ahead


def _peak(window_s: float) -> "Way":
    def look_back(points: Sequence[Point], _: float) -> list[float]:
        made: list[float] = []
        falling: deque[Point] = deque()
        for point in points:
            while falling and falling[-1].value <= point.value:
                falling.pop()
            falling.append(point)
            while falling[0].at_s <= point.at_s - window_s:
                falling.popleft()
            made.append(falling[0].value)
        return made

    return look_back


Way = Callable[[Sequence[Point], float], list[float]]
"""Returns at each point what was to be expected, from that point and earlier ones, for a horizon in seconds."""
WAYS: Sequence[Way] = (
    _level(15.0),
    _level(60.0),
    _level(300.0),
    _trend(60.0, 180.0),
    _peak(300.0),
    _peak(900.0),
    _peak(1800.0),
)
