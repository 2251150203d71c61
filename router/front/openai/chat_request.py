"""The chat completion request as clients write it, and what of it is refused because it would change the answer."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

from twostep.core.errors import Unsupported
from twostep.router.front.openai.generation_fields import GenerationFields, NumTokens, WireModel
from twostep.router.front.openai.neutral import NEUTRAL, Neutral, refuse_unsupported, shorten
from twostep.router.front.openai.template_fields import (
    TOOL_CALL_SCHEMA,
    TOOL_SCHEMA,
    JsonObject,
    check_template_settings,
    check_tool,
    check_tool_call,
)

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TOOLS = 1024
MAX_DOCUMENTS = 4096


class TextPart(WireModel):
    type: Literal["text"]
    text: str


# Without fail_fast a list of a million mistakes becomes a million error messages.
Content = str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)] | None
Tool = Annotated[JsonObject, AfterValidator(check_tool), WithJsonSchema(TOOL_SCHEMA)]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolCall = Annotated[JsonObject, AfterValidator(check_tool_call), WithJsonSchema(TOOL_CALL_SCHEMA)]
ToolCalls = Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


WITHOUT_CALLS: JsonObject = {
    "required": ["content"],
    "properties": {"content": {"not": {"type": "null"}}, "tool_calls": {"type": "null"}},
}
WITH_CALLS: JsonObject = {
    "required": ["tool_calls"],
    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array"}},
}


class ChatMessage(WireModel):
    """`tool_calls` and `tool_call_id` stand in histories; their text in the prompt is up to the chat template."""

    # Tells clients what the validators below ask for.
    model_config = ConfigDict(json_schema_extra={"anyOf": [WITHOUT_CALLS, WITH_CALLS]})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = None
    content: Annotated[Content, Field(validate_default=True)] = None

    @field_validator("tool_calls")
    @classmethod
    def _belong_to_an_assistant(cls, calls: list[JsonObject] | None, others: ValidationInfo) -> list[JsonObject] | None:
        if calls and others.data.get("role") != "assistant":
            raise ValueError("only an assistant's message has them")
        return calls

    @field_validator("content")
    @classmethod
    def _may_miss_beside_calls(cls, content: Content, others: ValidationInfo) -> Content:
        if content is None and not others.data.get("tool_calls"):
            raise ValueError("Field required")
        return content


class ChatRequest(GenerationFields):
    """The fields that twostep acts on."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: NumTokens | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto"] | None = None
    documents: Annotated[list[JsonObject], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    chat_template_kwargs: Annotated[JsonObject, AfterValidator(check_template_settings)] | None = None

    @property
    def asked_tokens(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens


CHAT_NEUTRAL: Neutral = {
    **NEUTRAL,
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def refuse_unsupported_chat(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for the first field, of the body or of a message, that asks for what would change the answer."""
    refuse_unsupported(body, CHAT_NEUTRAL)
    for position, message in _mappings(body.get("messages"), MAX_MESSAGES):
        _refuse_message(position, message)


def _mappings(value: Any, limit: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield place and value of the objects among the first `limit` items of a list."""
    items = value[:limit] if isinstance(value, list) else ()
    return ((place, item) for place, item in enumerate(items) if isinstance(item, dict))


def _refuse_message(position: int, message: Mapping[str, Any]) -> None:
    where = f"messages[{position}]"
    if message.get("role") == "function":
        raise Unsupported(f"{where}.role: functions are not supported, use tools; found 'function'", param=f"{where}.role")
    for field in ("function_call", "audio"):
        if message.get(field):
            raise Unsupported(f"{where}.{field} is not supported", param=f"{where}.{field}")
    for index, part in _mappings(message.get("content"), MAX_PARTS):
        if part.get("type") != "text":
            param = f"{where}.content[{index}].type"
            raise Unsupported(f"{param}: only 'text' parts are supported, found {shorten(part.get('type'))}", param=param)
