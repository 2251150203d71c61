"""The fields that say how to generate, with their types and ranges: the same at every front door."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

MAX_PRIORITY = 1_000_000
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128

Finite = Annotated[float, Field(allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
NumTokens = Annotated[int, Field(ge=1)]


class WireModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(WireModel):
    include_usage: bool = False


class GenerationFields(WireModel):
    """What chat and plain completions share. `bill` and those after it are extensions; the others are OpenAI's."""

    default_max_tokens: ClassVar[int | None] = None
    """How many tokens an answer may have when the client does not say; None: as many as fit."""

    model: str | None = None
    max_tokens: NumTokens | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    bill: bool = False
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a streamed reply ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def asked_tokens(self) -> tuple[str, int | None]:
        """The longest answer the client asks for, with the name of the field that says so."""
        return "max_tokens", self.max_tokens
