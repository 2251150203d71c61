"""Questions that a client asks, and what one undisturbed engine answers to them."""

from dataclasses import dataclass
from functools import cache

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.fake_runner import FakeModel
from twostep.tests.handoff.solo import Solo

MODEL = FakeModel(vocab_size=128)
"""Each token is one ASCII character, so a client sees every single index in the text."""
ORACLE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """Even numbers are greedy, odd ones drawn with their number as the seed. All prompts differ from the first block on."""

    number: int
    num_prompt: int = 100
    max_tokens: int = 100
    model: FakeModel = MODEL
    salt: str = "none"
    """Questions of different salt share no cached prefix."""

    @property
    def prompt(self) -> str:
        return "".join(chr(33 + (self.number * 31 + place * 7 + place // 32) % 90) for place in range(self.num_prompt))

    @property
    def temperature(self) -> float:
        return 0.8 if self.number % 2 else 0.0

    def body(self) -> dict[str, object]:
        return {
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.number,
            "ignore_eos": True,
            "cache_salt": self.salt,
            "stream": True,
        }


def crowd(salt: str) -> list[Question]:
    """Return 16 questions of which no prefix is cached where this salt is new."""
    return [Question(number, num_prompt=80, max_tokens=60, salt=salt) for number in range(16)]


def undisturbed(question: Question) -> str:
    """Return what one engine alone answers."""
    return _alone(question.prompt, question.max_tokens, question.temperature, question.number, question.model)


@cache
def _alone(prompt: str, max_tokens: int, temperature: float, seed: int, model: FakeModel) -> str:
    sampling, stop = SamplingParams(seed=seed, temperature=temperature), StopRules(max_tokens=max_tokens)
    tokens, _ = Solo(model, kv_bytes=ORACLE_BYTES).answer(Request(RequestId("alone"), tuple(prompt.encode()), sampling, stop))
    return bytes(tokens).decode()
