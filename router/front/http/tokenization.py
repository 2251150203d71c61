"""Text to tokens and back for clients, in the shape that vLLM's /tokenize and /detokenize have."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import require_model
from twostep.router.front.openai.conversation_of import conversation_of
from twostep.router.front.openai.event import Json
from twostep.router.front.openai.generation_fields import TokenId, WireModel
from twostep.router.front.openai.neutral import Neutral, refuse_unsupported
from twostep.router.front.openai.parse import parse_json_object, read_chat, read_fields


class TextToTokenize(WireModel):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True


class TokensToDetokenize(WireModel):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]


NEUTRAL: Neutral = {"return_token_strs": (False,)}


class Tokenization:
    """Each method takes the body of a request and returns that of its reply. Raises InvalidRequest and NoReadyNode."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def tokenize(self, body: bytes) -> Json:
        """A prompt's tokens, or with `messages` those that a chat completion of the same body would start from."""
        values = parse_json_object(body)
        refuse_unsupported(values, NEUTRAL)
        tokens = await (self._of_chat(values) if "messages" in values else self._of_text(values))
        max_model_len = self._model.limits().max_model_tokens
        return {"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens, "token_strs": None}

    async def detokenize(self, body: bytes) -> Json:
        asked = read_fields(TokensToDetokenize, parse_json_object(body), {})
        require_model(asked.model, self._model.names)
        return {"prompt": await self._model.decode(asked.tokens, field="tokens")}

    async def _of_text(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        asked = read_fields(TextToTokenize, values, NEUTRAL)
        require_model(asked.model, self._model.names)
        return await self._model.encode_text(asked.prompt, add_special_tokens=asked.add_special_tokens)

    async def _of_chat(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        asked = read_chat(values)
        require_model(asked.model, self._model.names)
        return await self._model.encode(conversation_of(asked))
