"""Long prompts that come into running streams, one after the other: what each side is given, and what is read off it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NUM_STREAMS = 16
STREAM_TOKENS = 256
PROMPT_TOKENS = 2048
CALM_STEPS = 16
"""Steps of the streams alone before each prompt."""
LONGEST = 1024
"""Tokens that a stream may have at most: none ends while it is measured."""


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
