"""From a parsed request and its tokens to the request that nodes serve: defaults, limits, minted ids and seeds."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from twostep.core.errors import InvalidRequest, PromptTooLong, UnknownModel
from twostep.core.ids import RequestId
from twostep.core.request import DEFAULT_LEVEL, Request, SamplingParams, ServiceLevel, StopRules
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.openai.neutral import shorten


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the decode nodes can take, in tokens: prompt and answer together, the prompt alone; and their vocabulary."""

    max_model_tokens: int
    max_prompt_tokens: int
    vocab_size: int


def require_model(asked: str | None, served: Sequence[str]) -> None:
    """Raise UnknownModel unless the client asks for a model that is served here, or for none by name."""
    if asked is not None and asked not in served:
        known = ", ".join(repr(name) for name in served)
        raise UnknownModel(f"model {shorten(asked)} does not exist here; served: {known}", param="model")


def require_tokens(tokens: Sequence[int], vocab_size: int, field: str) -> None:
    """Raise InvalidRequest unless the model has all of `tokens`, which stand in `field`."""
    if tokens and (highest := max(tokens)) >= vocab_size:
        raise InvalidRequest(f"{field}: token ids must be below {vocab_size}, found {highest}", param=field)


def accept(
    fields: GenerationFields,
    request_id: RequestId,
    prompt: tuple[int, ...],
    limits: ModelLimits,
    eos_ids: frozenset[int],
    *,
    field: str = "messages",
    level: ServiceLevel = DEFAULT_LEVEL,
) -> Request:
    """Return what the nodes are asked for, to be served at `level`; the prompt stands in `field`.

    Raises PromptTooLong or InvalidRequest, naming field, limit and value.
    """
    require_tokens(fields.stop_token_ids or (), limits.vocab_size, "stop_token_ids")
    return Request(
        id=request_id,
        prompt=prompt,
        sampling=_sampling(fields),
        stop=StopRules(
            max_tokens=_max_tokens(fields, len(prompt), limits, field),
            eos_ids=eos_ids,
            stop_ids=frozenset(fields.stop_token_ids or ()),
            ignore_eos=fields.ignore_eos,
        ),
        cache_salt=(fields.cache_salt or "").encode(),
        level=level,
    )


def _sampling(fields: GenerationFields) -> SamplingParams:
    seed = secrets.randbits(64) if fields.seed is None else fields.seed & ((1 << 64) - 1)
    return SamplingParams(
        seed=seed,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_k=max(0, fields.top_k or 0),
        top_p=1.0 if fields.top_p is None else fields.top_p,
        min_p=fields.min_p or 0.0,
    )


def _room(num_prompt: int, limits: ModelLimits, field: str) -> int:
    """Return how many tokens the answer can have at most."""
    longest = min(limits.max_prompt_tokens, limits.max_model_tokens - 1)
    if num_prompt == 0:
        raise InvalidRequest(f"{field}: the prompt is empty, at least 1 token is needed, found 0", param=field)
    if num_prompt > longest:
        raise PromptTooLong(f"{field}: the prompt has {num_prompt} tokens, at most {longest} fit", param=field)
    return limits.max_model_tokens - num_prompt


def _max_tokens(fields: GenerationFields, num_prompt: int, limits: ModelLimits, prompt_field: str) -> int:
    room = _room(num_prompt, limits, prompt_field)
    field, asked = fields.asked_tokens
    if asked is None:
        return min(room, fields.default_max_tokens or room)
    if asked > room:
        raise InvalidRequest(
            f"{field}: prompt and answer together may have at most {limits.max_model_tokens} tokens; "
            f"the prompt has {num_prompt}, so {field} can be {room} at most, found {asked}",
            param=field,
        )
    return asked
