"""From a parsed chat request and its tokens to the request that nodes serve: defaults, limits, minted ids and seeds."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from twostep.core.errors import InvalidRequest, PromptTooLong, UnknownModel
from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.router.chat_template import Message
from twostep.router.openai.chat_request import ChatMessage, ChatRequest, shorten


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the decode nodes can take, in tokens: prompt and answer together, the prompt alone; and their vocabulary."""

    max_model_tokens: int
    max_prompt_tokens: int
    vocab_size: int


def require_model(chat: ChatRequest, served: Sequence[str]) -> None:
    """Raise UnknownModel unless the client asks for a model that is served here, or for none by name."""
    if chat.model is not None and chat.model not in served:
        known = ", ".join(repr(name) for name in served)
        raise UnknownModel(f"model {shorten(chat.model)} does not exist here; served: {known}", param="model")


def template_messages(chat: ChatRequest) -> list[Message]:
    """Return the messages as chat templates expect them; text parts are joined by line breaks."""
    return [_template_message(message) for message in chat.messages]


def stop_strings(chat: ChatRequest) -> tuple[str, ...]:
    return (chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ())


def accept(
    chat: ChatRequest, request_id: RequestId, prompt: tuple[int, ...], limits: ModelLimits, eos_ids: frozenset[int]
) -> Request:
    """Return what the nodes are asked for. Raises PromptTooLong or InvalidRequest, naming field, limit and value."""
    return Request(
        id=request_id,
        prompt=prompt,
        sampling=_sampling(chat),
        stop=StopRules(
            max_tokens=_max_tokens(chat, len(prompt), limits),
            eos_ids=eos_ids,
            stop_ids=_stop_ids(chat, limits),
            ignore_eos=chat.ignore_eos,
        ),
        cache_salt=(chat.cache_salt or "").encode(),
    )


def _template_message(message: ChatMessage) -> Message:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": text, **named}


def _sampling(chat: ChatRequest) -> SamplingParams:
    seed = secrets.randbits(64) if chat.seed is None else chat.seed & ((1 << 64) - 1)
    return SamplingParams(
        seed=seed,
        temperature=1.0 if chat.temperature is None else chat.temperature,
        top_k=max(0, chat.top_k or 0),
        top_p=1.0 if chat.top_p is None else chat.top_p,
        min_p=chat.min_p or 0.0,
    )


def _max_tokens(chat: ChatRequest, num_prompt: int, limits: ModelLimits) -> int:
    room = limits.max_model_tokens - num_prompt
    longest = min(limits.max_prompt_tokens, limits.max_model_tokens - 1)
    if num_prompt == 0:
        raise InvalidRequest("messages: the prompt is empty, at least 1 token is needed, found 0", param="messages")
    if num_prompt > longest:
        raise PromptTooLong(f"messages: the prompt has {num_prompt} tokens, at most {longest} fit", param="messages")
    field = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    asked: int | None = getattr(chat, field)
    if asked is not None and asked > room:
        raise InvalidRequest(
            f"{field}: prompt and answer together may have {limits.max_model_tokens} tokens; the prompt has {num_prompt}, "
            f"so {field} can be {room} at most, found {asked}",
            param=field,
        )
    return room if asked is None else asked


def _stop_ids(chat: ChatRequest, limits: ModelLimits) -> frozenset[int]:
    ids = frozenset(chat.stop_token_ids or ())
    if beyond := [token for token in ids if token >= limits.vocab_size]:
        raise InvalidRequest(
            f"stop_token_ids: the model has {limits.vocab_size} tokens, found {min(beyond)}", param="stop_token_ids"
        )
    return ids
