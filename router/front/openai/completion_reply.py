"""The completion reply as OpenAI's clients read it: whole, or as server-sent events, one choice per prompt."""

from collections.abc import Sequence

from twostep.core.ids import RequestId
from twostep.router.front.openai.event import TEXT_MARK, Json, TextEvent, event
from twostep.router.front.openai.reply import Choice
from twostep.router.front.openai.usage import Usage


class CompletionReplyWriter:
    """A ReplyWriter of `num_choices` choices."""

    def __init__(self, request_id: RequestId, model: str, created: int, *, num_choices: int) -> None:
        self._common = {
            "id": f"cmpl-{request_id.removeprefix('req-')}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._texts = [TextEvent(self._reply([self._choice(index, TEXT_MARK, None)])) for index in range(num_choices)]

    def opening(self, index: int, echo: str) -> bytes:
        return self._texts[index].filled(echo) if echo else b""

    def texts(self, index: int) -> TextEvent:
        return self._texts[index]

    def finish(self, choice: Choice) -> bytes:
        return event(self._reply([{**self._choice(choice.index, "", choice.finish), **choice.billed()}]))

    def usage(self, usage: Usage) -> bytes:
        return event({**self._reply([]), "usage": usage.as_json()})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Json:
        answers = [{**self._choice(choice.index, choice.text, choice.finish), **choice.billed()} for choice in choices]
        return {**self._reply(answers), "usage": usage.as_json()}

    def _reply(self, choices: Sequence[Json]) -> Json:
        return {**self._common, "choices": list(choices)}

    def _choice(self, index: int, text: str, reason: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
