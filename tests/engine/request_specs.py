"""Random requests, and the tokens that a request draws when an engine serves nothing else."""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from hypothesis import strategies as st

from twostep.core.request import Request
from twostep.tests.engine.fakes import ask, build_engine, drain, put, tokens_by_request

PREFIXES = ([], list(range(32)), list(range(40)), list(range(64)), list(range(50)) + list(range(40, 70)))


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request that has no name yet; `num_draws` tokens may follow the forced ones."""

    prompt: tuple[int, ...]
    output_tokens: tuple[int, ...]
    num_draws: int
    temperature: float
    seed: int

    def named(self, name: str) -> Request:
        return ask(
            name,
            self.prompt,
            output_tokens=self.output_tokens,
            max_tokens=len(self.output_tokens) + self.num_draws,
            temperature=self.temperature,
            seed=self.seed,
        )


@st.composite
def request_specs(draw: st.DrawFn, max_draws: int) -> RequestSpec:
    """Prompts of 1 to 140 tokens, of which many begin alike."""
    noise = Random(draw(st.integers(0, 9)))
    return RequestSpec(
        prompt=(*draw(st.sampled_from(PREFIXES)), *noise.choices(range(97), k=draw(st.integers(1, 60)))),
        output_tokens=tuple(noise.choices(range(97), k=draw(st.integers(0, 3)))),
        num_draws=draw(st.integers(1, max_draws)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
    )


@lru_cache(maxsize=4096)
def solo(spec: RequestSpec) -> list[int]:
    """Return the tokens drawn by a fresh, roomy engine that computes the prompt in one chunk."""
    engine = build_engine(num_blocks=64, token_budget=4096)
    put(engine, spec.named("solo"))
    return tokens_by_request(drain(engine))["solo"]
