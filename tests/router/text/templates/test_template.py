"""What chat templates may do, are given, and are said to have done wrong."""

import json
from typing import Any

import pytest

from twostep.core.errors import ConfigError, InvalidRequest
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.template import ChatTemplates

HI = [{"role": "user", "content": "hé<😀>"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}


def rendered(source: str, messages: list[dict[str, Any]] = HI, **given: Any) -> str:
    return ChatTemplates({"default": source}, {"bos_token": "<s>"}).render(Conversation(messages, **given))


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ bos_token }}{{ messages | tojson }}", "<s>" + json.dumps(HI, ensure_ascii=False)),
        ("{{ {'b': 1, 'a': '<>'} | tojson(indent=1, sort_keys=true) }}", '{\n "a": "<>",\n "b": 1\n}'),
        ("{% for m in messages %}\n  {% if true %}\nx{% break %}\n{% endif %}\n{% endfor %}", "x"),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}b{{ x is defined }}", "abFalse"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
        ("{{ dict(a=1) | tojson }}{{ dict.fromkeys([1], 2) | tojson }}", '{"a": 1}{"1": 2}'),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
    ],
)
def test_templates_have_what_transformers_gives_them(source: str, prompt: str) -> None:
    assert rendered(source) == prompt


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the model's chat template refused them: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ dict.__class__ }}{{ dict.mro() }}", "has no attribute 'mro'"),
        ("{% set ns = namespace(_x=1) %}", "its name starts with an underscore"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "its name starts with an underscore"),
        ("{% set x = messages.append(1) %}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
        ("{{ raise_exception('x' * 9000) }}", "refused them: " + "x" * 300),
    ],
)
def test_a_template_that_fails_is_the_requests_fault(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        rendered(source)
    assert message in raised.value.message
    assert len(raised.value.message) < 400
    assert raised.value.param == "messages"


def test_a_template_that_does_not_compile_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match="the chat template 'default' does not compile: line 2: "):
        rendered("\n{% if %}")


def test_a_prompt_without_end_is_cut_off() -> None:
    long = "{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="the prompt has more than 16777216 characters"):
        rendered("{% if messages[0].content == 'go' %}" + long + "{% endif %}", [{"role": "user", "content": "go"}])


def test_settings_are_the_templates_variables_but_never_its_arguments() -> None:
    assert rendered("{{ mood }}{{ bos_token }}", settings={"mood": "calm", "bos_token": ""}) == "calm"
    assert rendered("{{ add_generation_prompt }}", settings={"add_generation_prompt": 5}) == "True"


def test_tools_choose_the_template_for_tools() -> None:
    templates = ChatTemplates({"default": "plain", "tool_use": "tools"}, {})
    assert templates.render(Conversation(HI)) == "plain"
    assert templates.render(Conversation(HI, tools=[{}])) == "tools"
    assert templates.render(Conversation(HI, tools=[{}], template="default")) == "plain"


def test_a_template_that_the_model_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(InvalidRequest, match="chat_template: the model has 'rag', 'tool_use', not 'default'"):
        ChatTemplates({"tool_use": "", "rag": ""}, {}).render(Conversation(HI))


def test_a_developers_message_is_a_systems_where_the_template_would_leave_it_out() -> None:
    shown = "{% for m in messages %}{% if m.role in ROLES %}{{ m.role }}:{{ m.content }} {% endif %}{% endfor %}"
    messages = [{"role": "developer", "content": "Be brief"}, *HI]
    assert rendered(shown.replace("ROLES", "['system', 'user']"), messages) == "system:Be brief user:hé<😀> "
    assert rendered(shown.replace("ROLES", "['system', 'user', 'developer']"), messages).startswith("developer:")


def test_arguments_that_are_no_object_are_refused_by_their_place() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    with pytest.raises(InvalidRequest) as raised:
        rendered("{{ messages | tojson }}", [*HI, calling])
    assert raised.value.message == "messages[1].tool_calls[0].function.arguments: expected a JSON object, found list"


def test_a_missing_content_is_not_given_as_null() -> None:
    calling = {"role": "assistant", "content": None, "name": None, "tool_call_id": "x"}
    assert rendered("{{ messages[1] | tojson }}", [*HI, calling]) == '{"role": "assistant", "tool_call_id": "x"}'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("constant", "the model's chat template takes no content"),
        ("{% set content = 1 %}", "the model's chat template leaves out parts of the last message"),
    ],
)
def test_a_message_that_the_template_leaves_out_cannot_be_continued(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        rendered(source, continue_final_message=True, add_generation_prompt=False)
    assert raised.value.param == "continue_final_message"


def test_the_last_of_several_parts_is_continued() -> None:
    source = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "One "}, {"type": "text", "text": "two "}]
    assert rendered(source, [{"role": "user", "content": parts}], continue_final_message=True) == "[One ][two "
