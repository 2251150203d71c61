"""The chat templates of public model families give the prompts that `transformers` gives."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from twostep.core.errors import InvalidRequest
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.template import ChatTemplates

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent / "families"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TAKES_ONLY_PARTS = "smolvlm"
TAKES_PARTS = {"gemma3", "glm4moe", "lfm2_2_5", "llama3_2_vision", "mistral_v3_tekken", "mistral_v7_tekken", TAKES_ONLY_PARTS}
TAKES_ARGUMENTS_AS_TEXT = "deepseekv3"
SHOWS_CALLS_ONLY_BESIDE_NULL = "deepseek_r1_distill"
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

SYSTEM = {"role": "system", "content": "Be brief & <kind>."}
ASK = {"role": "user", "content": "Où est l'\"Amstel\"? <b>& 'so' on</b> 😀"}
ANSWER = {"role": "assistant", "content": " In Amsterdam. "}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": "It is a river."}
MORE = {"role": "user", "content": "And the Rhine?\n"}
TOOL = {
    "type": "function",
    "function": {
        "name": "find_river",
        "description": "Finds <rivers>.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "Its name", "enum": ["Amstel", "Rhein"]}},
            "required": ["name"],
        },
    },
}
CALL = {"id": "call12345", "type": "function", "function": {"name": "find_river", "arguments": '{"name": "Größe", "n": 1}'}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CALLED = {"role": "tool", "content": '{"city": "Köln"}', "tool_call_id": "call12345", "name": "find_river"}
DOCUMENTS = [{"title": "Rivers", "text": "The Amstel flows in <Amsterdam>."}]

CONVERSATIONS = {
    "one question": Conversation([ASK]),
    "with a system message": Conversation([SYSTEM, ASK]),
    "several turns": Conversation([SYSTEM, ASK, ANSWER, MORE]),
    "without a new answer": Conversation([ASK, ANSWER], add_generation_prompt=False),
    "an answer to go on with": Conversation([ASK, ANSWER], add_generation_prompt=False, continue_final_message=True),
    "roles out of order": Conversation([ASK, ASK]),
    "an answer first": Conversation([ANSWER, ASK]),
    "no user at all": Conversation([SYSTEM]),
    "reasoning": Conversation([ASK, THOUGHT, MORE]),
    "no thinking": Conversation([ASK], settings={"enable_thinking": False}),
    "thinking": Conversation([SYSTEM, ASK], settings={"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "special tokens of the client's": Conversation([ASK], settings={"bos_token": "<begin>"}),
    "tools": Conversation([SYSTEM, ASK], tools=[TOOL, TOOL]),
    "tools called": Conversation([ASK, CALLING, CALLED], tools=[TOOL]),
    "tools called twice": Conversation([SYSTEM, ASK, CALLING, CALLED, ANSWER, MORE, CALLING, CALLED], tools=[TOOL]),
    "documents": Conversation([ASK], documents=DOCUMENTS),
    "a name": Conversation([{**ASK, "name": "Ada"}]),
}


@cache
def ours(family: str) -> ChatTemplates:
    return ChatTemplates({"default": source_of(family)}, SPECIAL_TOKENS)


@cache
def theirs(family: str) -> Any:
    return transformers_tokenizer(source_of(family))


def source_of(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")


def transformers_tokenizer(template: str | dict[str, str]) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), chat_template=template, **SPECIAL_TOKENS)


def expected(tokenizer: Any, conversation: Conversation) -> str | None:
    """Return what `transformers` makes of it, or None when the template refuses it."""
    try:
        return tokenizer.apply_chat_template(  # type: ignore[no-any-return]
            list(conversation.messages),
            tools=conversation.tools,
            documents=conversation.documents,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            chat_template=conversation.template,
            tokenize=False,
            **conversation.settings,
        )
    except Exception:  # noqa: BLE001 - whatever a template raises
        return None


def rendered(templates: ChatTemplates, conversation: Conversation) -> str | None:
    try:
        return templates.render(conversation)
    except InvalidRequest:
        return None


def with_argument_objects(conversation: Conversation) -> Conversation:
    """Return the conversation as users of `transformers` write it: arguments are objects there."""
    return replace(conversation, messages=[_with_argument_objects(message) for message in conversation.messages])


def _with_argument_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != TAKES_ONLY_PARTS])
def test_a_conversation_becomes_the_prompt_of_transformers(family: str, conversation: Conversation) -> None:
    written = conversation if family == TAKES_ARGUMENTS_AS_TEXT else with_argument_objects(conversation)
    assert rendered(ours(family), conversation) == expected(theirs(family), written)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_parts_become_what_transformers_makes_of_them_or_of_their_text(family: str) -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    sent = Conversation([{"role": "system", "content": parts}, {"role": "user", "content": parts}])
    joined = Conversation([{"role": "system", "content": "One.\nTwo."}, {"role": "user", "content": "One.\nTwo."}])
    assert rendered(ours(family), sent) == expected(theirs(family), sent if family in TAKES_PARTS else joined)


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in (TAKES_ONLY_PARTS, SHOWS_CALLS_ONLY_BESIDE_NULL)]
)
def test_a_message_of_calls_alone_becomes_what_transformers_makes_of_an_empty_content(family: str) -> None:
    sent = Conversation([ASK, {**CALLING, "content": None}])
    empty = Conversation([ASK, CALLING])
    written = empty if family == TAKES_ARGUMENTS_AS_TEXT else with_argument_objects(empty)
    assert rendered(ours(family), sent) == expected(theirs(family), written) is not None


@pytest.mark.parametrize(
    ("family", "answer"), [(SHOWS_CALLS_ONLY_BESIDE_NULL, "find_river"), (TAKES_ONLY_PARTS, "Assistant: <")]
)
def test_a_message_of_calls_alone_is_given_the_only_form_that_the_template_takes(family: str, answer: str) -> None:
    assert answer in ours(family).render(Conversation([ASK, {**CALLING, "content": None}]))


def test_a_message_of_calls_alone_beside_null_cannot_be_continued() -> None:
    sent = Conversation([ASK, {**CALLING, "content": None}], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="the last message has no content"):
        ours(SHOWS_CALLS_ONLY_BESIDE_NULL).render(sent)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_answers_a_question(family: str) -> None:
    assert "Amstel" in (rendered(ours(family), CONVERSATIONS["one question"]) or "")


def test_a_template_that_takes_only_parts_is_given_parts() -> None:
    parts = Conversation([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    prompt = ours("smolvlm").render(Conversation([{"role": "user", "content": "Hello"}]))
    assert prompt == expected(theirs("smolvlm"), parts) == "<|im_start|>User: Hello<end_of_utterance>\nAssistant:"


@pytest.mark.parametrize("name", [None, "rag", "tool_use"])
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
def test_of_named_templates_the_one_of_transformers_is_taken(name: str | None, tools: list[Any] | None) -> None:
    sources = {"default": source_of("command_a")} | {kind: source_of(f"command_a_{kind}") for kind in ("rag", "tool_use")}
    conversation = Conversation([SYSTEM, ASK], tools=tools, documents=DOCUMENTS, template=name)
    prompt = expected(transformers_tokenizer(sources), conversation)
    assert rendered(ChatTemplates(sources, SPECIAL_TOKENS), conversation) == prompt
