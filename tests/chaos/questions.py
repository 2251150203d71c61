"""Questions that a client asks over HTTP, what it hears, and what one undisturbed engine answers to them."""

import json
from dataclasses import dataclass, field
from functools import cache

import httpx

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


def undisturbed(question: Question) -> str:
    """Return what one engine alone answers."""
    return _alone(question.prompt, question.max_tokens, question.temperature, question.number, question.model)


@cache
def _alone(prompt: str, max_tokens: int, temperature: float, seed: int, model: FakeModel) -> str:
    sampling, stop = SamplingParams(seed=seed, temperature=temperature), StopRules(max_tokens=max_tokens)
    tokens, _ = Solo(model, kv_bytes=ORACLE_BYTES).answer(Request(RequestId("alone"), tuple(prompt.encode()), sampling, stop))
    return bytes(tokens).decode()


@dataclass(slots=True)
class Stream:
    """What a client has heard so far. `error` is the code of a typed error; `broken` says that the connection broke."""

    question: Question
    text: str = ""
    error: str = ""
    broken: str = ""
    is_over: bool = False
    status: int = 0
    events: list[dict[str, object]] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether the whole answer came, each index once, as undisturbed."""
        return self.is_over and not self.error and not self.broken and self.text == undisturbed(self.question)

    @property
    def is_true_so_far(self) -> bool:
        """Whether what was shown is how the undisturbed answer begins."""
        return undisturbed(self.question).startswith(self.text)

    @property
    def is_clean(self) -> bool:
        """Whether the answer is right, or ends with a typed error and was true so far."""
        return self.is_right or (self.is_over and bool(self.error) and self.is_true_so_far)

    async def listen(self, http: httpx.AsyncClient) -> None:
        """Ask, and hear to the end."""
        try:
            async with http.stream("POST", "/v1/completions", json=self.question.body()) as reply:
                self.status = reply.status_code
                if reply.status_code == httpx.codes.OK:
                    async for line in reply.aiter_lines():
                        self._hear(line)
                else:
                    self.error = json.loads(await reply.aread())["error"]["code"]
        except httpx.TransportError as error:
            self.broken = repr(error)
        self.is_over = True

    def _hear(self, line: str) -> None:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]["code"]
        else:
            self.text += "".join(choice["text"] for choice in event["choices"])
