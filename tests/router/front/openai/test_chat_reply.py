"""What goes over the wire to OpenAI's clients."""

import json
from typing import Any

import pytest

from twostep.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NoReadyNode,
    PromptTooLong,
    QueueFull,
    ServingError,
    TooLarge,
    UnknownModel,
)
from twostep.core.ids import RequestId
from twostep.router.front.openai.chat_reply import ChatReplyWriter
from twostep.router.front.openai.event import error_body, error_event
from twostep.router.front.openai.reply import Choice
from twostep.router.front.openai.usage import Usage

WRITER = ChatReplyWriter(RequestId("req-abc"), 'model "\0"', 1234)
USAGE = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=3)
COMMON = {"id": "chatcmpl-abc", "object": "chat.completion.chunk", "created": 1234, "model": 'model "\0"'}


def parsed(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event.removeprefix(b"data: "))


def choice(delta: dict[str, str], reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]


@pytest.mark.parametrize("text", ["hi", 'a"b\\c\n\r\u2028', "\0", "é😀", "data: [DONE]\n\n"])
def test_a_text_event_holds_any_text(text: str) -> None:
    assert parsed(WRITER.texts(0).filled(text)) == {**COMMON, "choices": choice({"content": text})}


def test_the_events_around_the_text() -> None:
    assert parsed(WRITER.opening(0, "")) == {**COMMON, "choices": choice({"role": "assistant", "content": ""})}
    assert parsed(WRITER.finish(Choice(0, "hi", "stop", None))) == {**COMMON, "choices": choice({}, "stop")}
    assert parsed(WRITER.usage(USAGE)) == {**COMMON, "choices": [], "usage": USAGE.as_json()}


def test_a_whole_reply() -> None:
    assert WRITER.whole([Choice(0, "hi", "stop", None)], USAGE) == {
        **COMMON,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InvalidRequest("x", param="stop"), "invalid_request_error", "invalid_request"),
        (PromptTooLong("x"), "invalid_request_error", "prompt_too_long"),
        (UnknownModel("x"), "invalid_request_error", "model_not_found"),
        (TooLarge("x"), "invalid_request_error", "request_too_large"),
        (QueueFull("x"), "rate_limit_error", "queue_full"),
        (NoReadyNode("x"), "server_error", "no_ready_node"),
        (DeadlineExceeded("x"), "server_error", "deadline_exceeded"),
    ],
)
def test_an_error_has_openais_shape(error: ServingError, kind: str, code: str) -> None:
    assert error_body(error) == {"error": {"message": "x", "type": kind, "param": error.param, "code": code}}
    assert parsed(error_event(error)) == error_body(error)
