"""The chat completion reply as OpenAI's clients read it: whole, or as server-sent events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostep.core.errors import ServingError
from twostep.core.ids import RequestId

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `cached_tokens` is the part of the prompt that nobody had to compute."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class ReplyWriter:
    """Writes the pieces of one reply: they share id, model and time of creation."""

    def __init__(self, request_id: RequestId, model: str, created: int) -> None:
        self._common = {"id": f"chatcmpl-{request_id.removeprefix('req-')}", "created": created, "model": model}
        # The same for every token: only the text between them is encoded anew.
        self._head, self._tail = self._event_around_text()

    def role(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def text(self, text: str) -> bytes:
        return self._head + _compact(text) + self._tail

    def finish(self, reason: str, extra: Mapping[str, Any]) -> bytes:
        return self._chunk({}, reason, extra)

    def usage(self, usage: Usage, extra: Mapping[str, Any]) -> bytes:
        return _event({**self._common, "object": "chat.completion.chunk", "choices": [], "usage": usage.as_json(), **extra})

    def whole(self, text: str, reason: str, usage: Usage, extra: Mapping[str, Any]) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": usage.as_json(), **extra}

    def _chunk(self, delta: Json, reason: str | None, extra: Mapping[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _event({**self._common, "object": "chat.completion.chunk", "choices": [choice], **(extra or {})})

    def _event_around_text(self) -> tuple[bytes, bytes]:
        # The text comes last among the values that a client can choose, so its mark is found from the right.
        head, _, tail = self._chunk({"content": "\0"}, None).rpartition(_compact("\0"))
        return head, tail


def error_body(error: ServingError) -> Json:
    """Return the error as OpenAI's clients read it."""
    return {"error": {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}}


def error_event(error: ServingError) -> bytes:
    """Return the event that ends a stream which has already begun."""
    return _event(error_body(error))


def error_type(error: ServingError) -> str:
    special = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
    if error.http_status in special:
        return special[error.http_status]
    return "invalid_request_error" if error.http_status < 500 else "server_error"


def _event(body: Json) -> bytes:
    return b"data: " + _compact(body) + b"\n\n"


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
