"""Every bad body is refused with the field, the limit and the value; what changes nothing is let through."""

import json
import time
from typing import Any

import pytest

from twostep.core.errors import InvalidRequest, Unsupported
from twostep.router.front.openai.parse import parse_chat_request

MESSAGES = [{"role": "user", "content": "hi"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, **fields}).encode()


INVALID_FIELDS = [
    ("max_tokens", 0, "max_tokens: Input should be greater than or equal to 1, found 0"),
    ("max_tokens", -5, "greater than or equal to 1, found -5"),
    ("max_tokens", "5", "max_tokens: Input should be a valid integer, found '5'"),
    ("max_tokens", True, "valid integer, found True"),
    ("max_tokens", 1.5, "valid integer, found 1.5"),
    ("max_completion_tokens", 0, "max_completion_tokens: Input should be greater than or equal to 1, found 0"),
    ("temperature", -0.1, "temperature: Input should be greater than or equal to 0, found -0.1"),
    ("temperature", 2.1, "less than or equal to 2, found 2.1"),
    ("temperature", float("nan"), "temperature: Input should be a finite number, found nan"),
    ("temperature", float("inf"), "finite number, found inf"),
    ("temperature", "hot", "valid number, found 'hot'"),
    ("top_p", 0, "top_p: Input should be greater than 0, found 0"),
    ("top_p", 1.1, "less than or equal to 1, found 1.1"),
    ("top_k", -2, "top_k: Input should be greater than or equal to -1, found -2"),
    ("min_p", 1.5, "min_p: Input should be less than or equal to 1, found 1.5"),
    ("seed", 1 << 64, "seed: Input should be less than 18446744073709551616"),
    ("seed", "x", "seed: Input should be a valid integer, found 'x'"),
    ("stop", 5, "stop: Input should be a valid string, found 5"),
    ("stop", ["a"] * 5, "stop: List should have at most 4 items after validation, not 5"),
    ("stop", "", "stop: String should have at least 1 character, found ''"),
    ("stop", ["a", ""], "stop[1]: String should have at least 1 character"),
    ("stop", [1], "stop[0]: Input should be a valid string, found 1"),
    ("stop", "x" * 257, "stop: String should have at most 256 characters"),
    ("stop_token_ids", [-1], "stop_token_ids[0]: Input should be greater than or equal to 0, found -1"),
    ("stop_token_ids", 5, "stop_token_ids: Input should be a valid list"),
    ("stream", "yes", "stream: Input should be a valid boolean, found 'yes'"),
    ("stream_options", {"include_usage": 1}, "stream_options.include_usage: Input should be a valid boolean"),
    ("ignore_eos", 1, "ignore_eos: Input should be a valid boolean, found 1"),
    ("bill", "yes", "bill: Input should be a valid boolean"),
    ("cache_salt", "", "cache_salt: String should have at least 1 character"),
    ("model", 5, "model: Input should be a valid string, found 5"),
    ("messages", [], "messages: List should have at least 1 item after validation, not 0, found []"),
    ("messages", "hi", "messages: Input should be a valid list, found 'hi'"),
    ("messages", None, "messages: Input should be a valid list, found None"),
    ("messages", [1], "messages[0]: Input should be a valid dictionary"),
    ("messages", [{"role": "user"}], "messages[0].content: Field required"),
    ("messages", [{"content": "hi"}], "messages[0].role: Field required"),
    ("messages", [{"role": "king", "content": "hi"}], "messages[0].role: Input should be 'system', 'developer'"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content: Input should be a valid string, found 5"),
    ("messages", [{"role": "user", "content": []}], "messages[0].content: List should have at least 1 item"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: Field required"),
    ("messages", [{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]: expected {'id': ..."),
    ("messages", [{"role": "user", "content": "a", "tool_calls": [CALL]}], "messages[0].tool_calls: only an assistant's"),
    ("messages", [{"role": "tool", "content": None}], "messages[0].content: Field required"),
    ("tools", [{"type": "function"}], "tools[0]: expected {'type': 'function', 'function': {'name': ..., ...}}"),
    ("tools", "f", "tools: Input should be a valid list, found 'f'"),
    ("documents", ["text"], "documents[0]: Input should be a valid dictionary"),
    ("chat_template_kwargs", {"tools": []}, "chat_template_kwargs: tools is a field of its own"),
    ("continue_final_message", "yes", "continue_final_message: Input should be a valid boolean"),
    ("chat_template", ["a"], "chat_template: Input should be a valid string"),
]


@pytest.mark.parametrize(("field", "value", "message"), INVALID_FIELDS)
def test_a_bad_field_is_named_with_its_limit_and_value(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(body(**{field: value}))
    assert message in raised.value.message
    assert raised.value.param is not None
    assert raised.value.param.startswith(field)
    assert raised.value.http_status == 400


UNSUPPORTED_FIELDS = [
    ("n", 2, "n is not supported; only 1 is accepted, found 2"),
    ("n", True, "n is not supported; only 1 is accepted, found True"),
    ("skip_special_tokens", 1, "skip_special_tokens is not supported; only True is accepted, found 1"),
    ("logprobs", True, "logprobs is not supported; only False is accepted, found True"),
    ("top_logprobs", 3, "top_logprobs is not supported"),
    ("tool_choice", "required", "tool_choice is not supported; only 'none' or 'auto' is accepted, found 'required'"),
    ("response_format", {"type": "json_object"}, "response_format is not supported; only {'type': 'text'} is accepted"),
    ("logit_bias", {"5": 1}, "logit_bias is not supported"),
    ("presence_penalty", 0.5, "presence_penalty is not supported; only 0 is accepted, found 0.5"),
    ("frequency_penalty", -1, "frequency_penalty is not supported"),
    ("repetition_penalty", 1.1, "repetition_penalty is not supported"),
    ("min_tokens", 5, "min_tokens is not supported"),
    ("guided_regex", "a+", "guided_regex is not supported, found 'a+'"),
    ("messages", [{"role": "function", "content": "4"}], "messages[0].role: functions are not supported, use tools"),
    ("messages", [{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call is not supported"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, "tool_choice is not supported; only 'none' or 'auto'"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type: only 'text' parts"),
]


@pytest.mark.parametrize(("field", "value", "message"), UNSUPPORTED_FIELDS)
def test_what_would_change_the_answer_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(Unsupported) as raised:
        parse_chat_request(body(**{field: value}))
    assert message in raised.value.message
    assert raised.value.param is not None
    assert raised.value.param.startswith(field)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": None},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True},
        {"from_the_future": {"x": 1}},
    ],
)
def test_what_does_not_change_the_answer_is_let_through(fields: dict[str, Any]) -> None:
    assert parse_chat_request(body(**fields)).messages[0].content == "hi"


def test_unknown_fields_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        parse_chat_request(body(from_the_future=1, user="me"))
    assert caplog.records[-1].__dict__["fields"] == ["'from_the_future'"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object, found list"),
        (b"null", "the body must be a JSON object, found NoneType"),
        (b'{"a": "\xff"}', "the body is not UTF-8: byte 7 is 0xff"),
        (b'{"a":' * 100_000, "recursion limit exceeded"),
        (b'{"a":' + b"[" * 100_000, "recursion limit exceeded"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "number out of range"),
        (rb'{"messages": [{"role": "user", "content": "\ud800"}]}', "the body is not valid JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(raw)
    assert message in raised.value.message
    assert len(raised.value.message) < 300


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(body(model=["x" * 10_000]))
    assert len(raised.value.message) < 300


@pytest.mark.parametrize(
    ("field", "item", "message"),
    [
        ("messages", [], "messages[0]: Input should be a valid dictionary"),
        ("messages", {}, "messages[0].role: Field required"),
        ("messages", MESSAGES[0], "messages: List should have at most 4096 items"),
        ("tools", {}, "tools[0]: expected {'type': 'function'"),
        ("documents", 1, "documents[0]: Input should be a valid dictionary"),
        ("stop", [], "stop: List should have at most 4 items"),
        ("model", [[]], "model: Input should be a valid string, found [[[]], [[]], "),
    ],
)
def test_a_hundred_thousand_mistakes_cost_no_more_than_one(field: str, item: Any, message: str) -> None:
    wide = body(**{field: [item] * 100_000})
    started = time.process_time()
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(wide)
    assert message in raised.value.message
    assert len(raised.value.message) < 300
    assert time.process_time() - started < 1


def test_a_hundred_thousand_mistakes_in_one_message_cost_no_more_than_one() -> None:
    for message in (
        {"role": "user", "content": [1] * 100_000},
        {"role": "user", "content": [{"type": "text"}] * 100_000},
        {"role": "assistant", "tool_calls": [{}] * 100_000},
    ):
        started = time.process_time()
        with pytest.raises(InvalidRequest):
            parse_chat_request(body(messages=[message]))
        assert time.process_time() - started < 1
