"""What the nodes know of a request: token ids, sampling and stop rules. No text."""

import enum
import math
from dataclasses import dataclass, field

from twostep.core.ids import RequestId


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class StopRules:
    """The rules over tokens that end an answer; stop strings are the router's."""

    max_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    ending: frozenset[int] = field(init=False, repr=False, compare=False)
    """The tokens with which an answer ends wherever they stand; they have no text then."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ending", self.stop_ids if self.ignore_eos else self.stop_ids | self.eos_ids)

    def finish_reason(self, token: int, index: int) -> FinishReason | None:
        """Return why the answer ends with `token` as its output number `index` (from 0), or None if it goes on.

        The same pure function decides on the prefill and on the decode node.
        """
        if token in self.ending:
            return FinishReason.STOP
        return FinishReason.LENGTH if index + 1 >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """How a request is to be served beside others.

    A lower `priority` is served earlier. Tenants get equal shares of what they compete for. `ttft_s`, from the request's
    arrival at the router, and `tpot_s` are what its client would like; None: no wish.
    """

    priority: int = 0
    tenant: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None


DEFAULT_LEVEL = ServiceLevel()


@dataclass(frozen=True, slots=True)
class Timing:
    """A request's place in time, in durations, as clocks of different machines have nothing to do with each other.

    `age_s` is how long ago it arrived at its router, `remaining_s` how long it may still take.
    """

    age_s: float = 0.0
    remaining_s: float = math.inf


UNTIMED = Timing()
"""Has just come, and may take for ever."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the nodes see it.

    `output_tokens` are those the router has accepted in earlier attempts: forced, never resampled.
    """

    id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    output_tokens: tuple[int, ...] = ()
    cache_salt: bytes = b""
    level: ServiceLevel = DEFAULT_LEVEL

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and forced output: what has to be in the KV cache before the next token can be drawn."""
        return self.prompt + self.output_tokens


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one request, as D emits it. `index` counts the request's output tokens from 0."""

    request: RequestId
    attempt: int
    index: int
    token: int
    finish: FinishReason | None = None
    choice: int = 0
