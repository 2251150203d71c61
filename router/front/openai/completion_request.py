"""The completion request as clients write it: the four shapes of its prompt, and what of it is refused."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, TypeAdapter, WithJsonSchema

from twostep.core.errors import InvalidRequest
from twostep.router.front.openai.generation_fields import GenerationFields, TokenId
from twostep.router.front.openai.neutral import NEUTRAL, Neutral, shorten

MAX_PROMPTS = 128

Tokens = Annotated[list[TokenId], Field(min_length=1)]
Batch = Annotated[list[str] | list[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
PROMPT_SCHEMA = TypeAdapter[Any](str | Tokens | Batch).json_schema()


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """One prompt, text or token ids, and the name of the field it stands in."""

    field: str
    value: str | tuple[int, ...]


def read_prompts(value: Any) -> list[GivenPrompt]:
    """Return the prompts in `value`: a text, token ids, or a list of texts or of lists of token ids. Raises InvalidRequest.

    Written by hand: a schema would try all four shapes on every one of 100,000 token ids.
    """
    if isinstance(value, str):
        return [GivenPrompt("prompt", value)]
    if not isinstance(value, list) or not value:
        raise _wrong("prompt", "expected a text, a list of token ids, or a list of such", value)
    if _is_integer(value[0]):
        return [GivenPrompt("prompt", _token_ids("prompt", value))]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt: at most {MAX_PROMPTS} prompts may come together, found {len(value)}", param="prompt")
    read = _text if isinstance(value[0], str) else _token_ids
    fields = [f"prompt[{position}]" for position in range(len(value))]
    return [GivenPrompt(field, read(field, prompt)) for field, prompt in zip(fields, value, strict=True)]


class CompletionRequest(GenerationFields):
    """The fields that twostep acts on."""

    default_max_tokens: ClassVar[int | None] = 16

    prompt: Annotated[list[GivenPrompt], PlainValidator(read_prompts), WithJsonSchema(PROMPT_SCHEMA)]
    echo: bool | None = None
    add_special_tokens: bool = True


COMPLETION_NEUTRAL: Neutral = {
    **NEUTRAL,
    "logprobs": (),
    "prompt_embeds": (),
    "spaces_between_special_tokens": (True,),
    "suffix": (),
}


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(field, "expected a text as the prompt before it", value)
    return value


def _token_ids(field: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _wrong(field, "expected a text or a list of token ids", value)
    wrong = next((position for position, token in enumerate(value) if not _is_token_id(token)), None)
    if wrong is not None:
        raise _wrong(f"{field}[{wrong}]", "expected a token id", value[wrong])
    return tuple(value)


def _is_token_id(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 1 << 32


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(field: str, expected: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{field}: {expected}, found {shorten(value)}", param=field)
