"""The chat completion reply as OpenAI's clients read it: whole, or as server-sent events."""

from collections.abc import Sequence

from twostep.core.ids import RequestId
from twostep.router.front.openai.event import TEXT_MARK, Json, TextEvent, event
from twostep.router.front.openai.reply import Choice
from twostep.router.front.openai.usage import Usage

CHUNK = "chat.completion.chunk"


class ChatReplyWriter:
    """A ReplyWriter of one choice. Nothing is echoed."""

    def __init__(self, request_id: RequestId, model: str, created: int) -> None:
        self._common = {"id": f"chatcmpl-{request_id.removeprefix('req-')}", "created": created, "model": model}
        self._text = TextEvent(self._chunk(0, {"content": TEXT_MARK}))

    def opening(self, index: int, _echo: str) -> bytes:
        return event(self._chunk(index, {"role": "assistant", "content": ""}))

    def texts(self, _index: int) -> TextEvent:
        return self._text

    def finish(self, choice: Choice) -> bytes:
        return event({**self._chunk(choice.index, {}, choice.finish), **choice.billed()})

    def usage(self, usage: Usage) -> bytes:
        return event({**self._common, "object": CHUNK, "choices": [], "usage": usage.as_json()})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Json:
        [choice] = choices
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        answer = {"index": choice.index, "message": message, "logprobs": None, "finish_reason": choice.finish}
        reply = {**self._common, "object": "chat.completion", "choices": [answer], "usage": usage.as_json()}
        return {**reply, **choice.billed()}

    def _chunk(self, index: int, delta: Json, reason: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._common, "object": CHUNK, "choices": [choice]}
