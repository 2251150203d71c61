"""What both sides are given, and what is read off them: streams that run, and prompts that come into them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from twostep.engine.config import SchedulingConfig

NUM_STREAMS = 16
STREAM_TOKENS = 256
PROMPT_TOKENS = 2048
CALM_STEPS = 16
"""Steps of the streams alone before each prompt."""
LONGEST = 1024
"""Tokens that a stream may have at most: none ends while it is measured."""

NUM_STEPS = 32
"""Decode steps per figure, on both sides."""
LONGEST_DECODED = 128
"""Tokens of each sequence whose decode steps are timed, those included that it draws while others are still prompts."""
BY_BUDGET_ALONE = SchedulingConfig(tpot_target_s=1e6)


@dataclass(frozen=True, slots=True)
class MixedLoad:
    streams: Sequence[Sequence[int]]
    prompts: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the streams, the times between tokens while prompts came; of the prompts, those to their first tokens. Seconds."""

    itl_s: list[float]
    ttft_s: list[float]


def times_between(moments: Sequence[float], since: float) -> list[float]:
    """Return the times between tokens that came at `moments`, of those after `since`."""
    return [after - before for before, after in pairwise(moments) if after > since]
