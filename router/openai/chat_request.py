"""The chat completion request as clients write it, and what of it is refused because it would change the answer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from twostep.core.errors import Unsupported

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_MESSAGES = 4096

Finite = Annotated[float, Field(allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class WireModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class StreamOptions(WireModel):
    include_usage: bool = False


class ChatRequest(WireModel):
    """The fields that twostep acts on. `bill` and those after it are extensions; the others are OpenAI's."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    bill: bool = False
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that change the answer and are not supported: the values, besides null, that ask for nothing."""

HARMLESS = frozenset({"metadata", "parallel_tool_calls", "prediction", "priority", "prompt_cache_key", "request_id"}) | {
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
"""Known fields that do not change the answer; ignored."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for the first field that asks for something that would change the answer."""
    for field, neutral in NEUTRAL.items():
        value = body.get(field)
        if value is None or any(value == allowed for allowed in neutral):
            continue
        only = f"; only {' or '.join(repr(allowed) for allowed in neutral)} is accepted" if neutral else ""
        raise Unsupported(f"{field} is not supported{only}, found {shorten(value)}", param=field)
    for position, message in enumerate(_mappings(body.get("messages"))):
        _refuse_message(position, message)


def unknown_fields(body: Mapping[str, Any]) -> list[str]:
    return sorted(body.keys() - ChatRequest.model_fields.keys() - NEUTRAL.keys() - HARMLESS)


def shorten(value: Any, limit: int = 80) -> str:
    """Return `value` as an error message shows it."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


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
