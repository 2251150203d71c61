"""The chat completion request as clients write it, and what of it is refused because it would change the answer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from twostep.core.errors import Unsupported
from twostep.router.openai.generation_fields import GenerationFields, NumTokens, WireModel
from twostep.router.openai.neutral import NEUTRAL, Neutral, refuse_unsupported, shorten

MAX_MESSAGES = 4096


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class ChatRequest(GenerationFields):
    """The fields that twostep acts on."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: NumTokens | None = None

    @property
    def asked_tokens(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens


CHAT_NEUTRAL: Neutral = {
    **NEUTRAL,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def refuse_unsupported_chat(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for the first field, of the body or of a message, that asks for what would change the answer."""
    refuse_unsupported(body, CHAT_NEUTRAL)
    for position, message in enumerate(_mappings(body.get("messages"))):
        _refuse_message(position, message)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _refuse_message(position: int, message: Mapping[str, Any]) -> None:
    where = f"messages[{position}]"
    if message.get("role") in ("tool", "function"):
        raise Unsupported(f"{where}.role: tool calls are not supported, found {message['role']!r}", param=f"{where}.role")
    for field in ("tool_calls", "function_call", "audio"):
        if message.get(field):
            raise Unsupported(f"{where}.{field} is not supported", param=f"{where}.{field}")
    for index, part in enumerate(_mappings(message.get("content"))):
        if part.get("type") != "text":
            param = f"{where}.content[{index}].type"
            raise Unsupported(f"{param}: only 'text' parts are supported, found {shorten(part.get('type'))}", param=param)
