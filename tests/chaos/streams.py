"""What a client hears of an answer that is streamed to it over HTTP."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from twostep.tests.chaos.questions import Question, undisturbed
from twostep.tests.chaos.waiting import until

DEADLINE_S = 35.0
"""No stream may last longer, whatever happens: the requests' own deadline and some room."""


@dataclass(slots=True)
class Stream:
    """What a client has heard so far. `error` is the code of a typed error; `broken` says that the connection broke."""

    question: Question
    text: str = ""
    error: str = ""
    broken: str = ""
    is_over: bool = False
    status: int = 0

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


async def heard(stream: Stream, num_tokens: int) -> None:
    """Wait until the client has heard so many tokens."""

    async def missing() -> str:
        is_enough = len(stream.text) >= num_tokens
        assert is_enough or not stream.is_over, stream
        return "" if is_enough else f"{num_tokens} tokens of {stream}"

    await until(missing, within_s=DEADLINE_S)


async def one_heard(streams: Sequence[Stream], num_tokens: int) -> None:
    """Wait until one of the clients has heard so many tokens."""

    async def missing() -> str:
        return "" if any(len(stream.text) >= num_tokens for stream in streams) else f"{num_tokens} tokens of any stream"

    await until(missing, within_s=DEADLINE_S)


async def all_over(streams: Sequence[Stream]) -> None:
    """Wait until every client has heard the end."""

    async def missing() -> str:
        return ", ".join(f"the end of {stream}" for stream in streams if not stream.is_over)

    await until(missing, within_s=DEADLINE_S)
