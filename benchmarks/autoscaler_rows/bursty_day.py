"""A day made of a trace's requests: quiet at night, busy at noon and in the evening, and in bursts as the trace has them."""

import math
from collections.abc import Sequence
from random import Random

from twostep.autoscaler.simulation.trace import TraceRequest

HOUR_S = 3600.0
NIGHT = 0.25
"""The share of the trace's requests that is asked in the quietest hour."""
NUM_BURSTS = 3
"""In a day, beside the trace's own: for some minutes twice as much is asked."""
BURST_S = (180.0, 600.0)


def bursty_day(trace: Sequence[TraceRequest], num_hours: int, *, seed: int = 1) -> list[TraceRequest]:
    """Return `num_hours` from six in the morning on, each hour the whole trace turned by a random time, thinned by the hour."""
    draw = Random(seed)
    length_s = max(HOUR_S, trace[-1].at_s)
    bursts = [_burst(draw, 24 * HOUR_S) for _ in range(NUM_BURSTS)]
    found: list[TraceRequest] = []
    for hour in range(num_hours):
        turned_s = draw.uniform(0, length_s)
        for one in trace:
            at_s = hour * HOUR_S + (one.at_s + turned_s) % length_s
            wanted = share_at(at_s) * (2.0 if any(begin <= at_s < end for begin, end in bursts) else 1.0)
            copies = math.floor(wanted) + (draw.random() < wanted % 1)
            found.extend(TraceRequest(at_s + draw.uniform(0, 1), one.prompt_tokens, one.output_tokens) for _ in range(copies))
    return sorted(found, key=lambda one: one.at_s)


def share_at(at_s: float) -> float:
    """Return how much is asked so long after six in the morning, as a share of the busiest time: a wave, highest at four."""
    return NIGHT + (1 - NIGHT) * (1 + math.sin(2 * math.pi * (at_s / (24 * HOUR_S) - 1 / 6))) / 2


def _burst(draw: Random, day_s: float) -> tuple[float, float]:
    begin = draw.uniform(0, day_s)
    return begin, begin + draw.uniform(*BURST_S)
