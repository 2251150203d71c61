"""What of a chat request reaches the model's chat template."""

import json
from typing import Any

import pytest

from twostep.core.errors import InvalidRequest
from twostep.router.front.openai.conversation_of import conversation_of
from twostep.router.front.openai.parse import parse_chat_request
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.plain import PlainRenderer

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": None}}, "extra": 1}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"z": 1}'}}


def conversation(**fields: Any) -> Conversation:
    return conversation_of(parse_chat_request(json.dumps({"messages": [HI], **fields}).encode()))


def test_messages_are_given_without_what_the_client_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    told = [{"role": "system", "content": parts, "name": "Ann"}, {**HI, "unknown": 1, "tool_calls": None}]
    assert list(conversation(messages=told).messages) == [
        {"role": "system", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        HI,
    ]


def test_tools_and_calls_are_given_as_they_were_sent() -> None:
    history = [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "4"}]
    asked = conversation(messages=history, tools=[TOOL], documents=[{"b": 1, "a": 2}])
    assert json.dumps(asked.tools) == json.dumps([TOOL])
    assert json.dumps(asked.messages[1]["tool_calls"]) == json.dumps([CALL])
    assert json.dumps(asked.documents) == '[{"b": 1, "a": 2}]'


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_no_tools_are_given_where_none_may_be_called(fields: dict[str, Any]) -> None:
    assert conversation(**fields).tools is None


def test_a_new_answer_begins_unless_the_last_message_is_continued() -> None:
    assert conversation().add_generation_prompt
    assert not conversation(add_generation_prompt=False).add_generation_prompt
    assert not conversation(continue_final_message=True).add_generation_prompt


def test_both_a_new_answer_and_the_last_message_is_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        conversation(continue_final_message=True, add_generation_prompt=True)
    assert raised.value.param == "continue_final_message"


def test_the_templates_name_and_settings_are_given() -> None:
    asked = conversation(chat_template="rag", chat_template_kwargs={"enable_thinking": False})
    assert (asked.template, asked.settings) == ("rag", {"enable_thinking": False})


async def test_the_fake_models_prompt_shows_all_that_it_was_given() -> None:
    plain = PlainRenderer()
    assert await plain.render(conversation()) == "user: hi\nassistant:"
    assert await plain.render(conversation(continue_final_message=True)) == "user: hi"
    assert await plain.render(conversation(add_generation_prompt=False)) == "user: hi\n"
    assert await plain.render(conversation(documents=[{"a": 1}])) == 'documents: [{"a": 1}]\nuser: hi\nassistant:'
