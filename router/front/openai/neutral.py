"""Which fields are refused because they would change the answer, and which are known to be harmless."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from twostep.core.errors import Unsupported

MAX_SHOWN_CHARACTERS = 1000

Neutral = Mapping[str, tuple[Any, ...]]
"""Fields that change the answer and are not supported: the values, besides null, that ask for nothing."""

NEUTRAL: Neutral = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Known fields that do not change the answer; ignored."""


def refuse_unsupported(body: Mapping[str, Any], neutral: Neutral) -> None:
    """Raise Unsupported for the first field that asks for something that would change the answer."""
    for field, accepted in neutral.items():
        value = body.get(field)
        if value is None or any(_is_same(value, allowed) for allowed in accepted):
            continue
        only = f"; only {' or '.join(repr(allowed) for allowed in accepted)} is accepted" if accepted else ""
        raise Unsupported(f"{field} is not supported{only}, found {shorten(value)}", param=field)


def _is_same(value: Any, allowed: Any) -> bool:
    """Return whether these are the same JSON, where 0 is not false."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def unknown_fields(body: Mapping[str, Any], known: Collection[str], neutral: Neutral) -> list[str]:
    return [field for field in body if not (field in known or field in neutral or field in HARMLESS)]


def shorten(value: Any, limit: int = 80) -> str:
    """Return JSON `value` as an error message shows it. What is not shown costs nothing."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > limit:
            return f"{text[:limit]}…"
    return text


def _pieces(value: Any) -> Iterator[str]:
    """Yield, piece by piece, what `repr` returns for JSON values; long texts only in part."""
    match value:
        case list():
            yield from _joined("[", (_pieces(item) for item in value), "]")
        case dict():
            pairs = (chain(_pieces(key), (": ",), _pieces(item)) for key, item in value.items())
            yield from _joined("{", pairs, "}")
        case str():
            yield repr(value[:MAX_SHOWN_CHARACTERS])
        case _:
            yield repr(value)


def _joined(opening: str, items: Iterable[Iterable[str]], closing: str) -> Iterator[str]:
    yield opening
    for position, item in enumerate(items):
        if position:
            yield ", "
        yield from item
    yield closing
