"""A client of `/v1/completions` that notes when each token's text came."""

import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

TIMEOUT_S = 300.0


@dataclass(slots=True)
class Answer:
    """One streamed answer as it came; moments are the machine's monotonic clock's. `error` tells why it is none."""

    sent: float
    texts: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    bill: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ttft_s(self) -> float:
        return self.moments[0] - self.sent

    @property
    def total_s(self) -> float:
        return self.moments[-1] - self.sent

    def longest_stall_s(self) -> float:
        """Return the longest time in which nothing came, from the request to the last text."""
        moments = [self.sent, *self.moments]
        return max(after - before for before, after in pairwise(moments))


class Client:
    """Asks one router. Answers are greedy and never end before `max_tokens`."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """Return the whole answer, failed or not."""
        answer = Answer(time.monotonic())
        async for _ in self.stream(prompt, max_tokens, answer):
            pass
        return answer

    async def stream(self, prompt: list[int], max_tokens: int, answer: Answer) -> AsyncGenerator[None, None]:
        """Fill `answer`; yields after each text. Closing this disconnects."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True, "bill": True}
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    answer.error = f"{reply.status_code}: {(await reply.aread()).decode()}"
                    return
                async for line in reply.aiter_lines():
                    if line.startswith("data: "):
                        _take(line.removeprefix("data: "), answer)
                        yield
        except httpx.HTTPError as cause:
            answer.error = f"{type(cause).__name__}: {cause}"
        if not answer.is_over and not answer.error:
            answer.error = "the stream ended without its last word"


def _take(data: str, answer: Answer) -> None:
    if data == "[DONE]":
        answer.is_over = True
        return
    event = json.loads(data)
    if "error" in event:
        answer.error = str(event["error"])
        return
    for choice in event["choices"]:
        if choice["text"]:
            answer.texts.append(choice["text"])
            answer.moments.append(time.monotonic())
        answer.bill |= choice.get("bill") or {}
