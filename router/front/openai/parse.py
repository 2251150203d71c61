"""From the bytes of a body to a typed request, or to an error that names field, limit and value."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic_core
from pydantic import ValidationError

from twostep.core.errors import InvalidRequest
from twostep.router.front.openai.chat_request import CHAT_NEUTRAL, ChatRequest, refuse_unsupported_chat
from twostep.router.front.openai.completion_request import COMPLETION_NEUTRAL, CompletionRequest
from twostep.router.front.openai.generation_fields import WireModel
from twostep.router.front.openai.neutral import Neutral, refuse_unsupported, shorten, unknown_fields

W = TypeVar("W", bound=WireModel)

log = logging.getLogger(__name__)

UNION_BRANCHES = frozenset({"str", "constrained-str", "list[TextPart]", "list[constrained-str]"})


def parse_chat_request(body: bytes) -> ChatRequest:
    """Return the request in `body`. Raises InvalidRequest or Unsupported."""
    return read_chat(parse_json_object(body))


def read_chat(values: Mapping[str, Any]) -> ChatRequest:
    """Return `values` as a request. Raises InvalidRequest or Unsupported."""
    refuse_unsupported_chat(values)
    return read_fields(ChatRequest, values, CHAT_NEUTRAL)


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Return the request in `body`. Raises InvalidRequest or Unsupported."""
    values = parse_json_object(body)
    refuse_unsupported(values, COMPLETION_NEUTRAL)
    return read_fields(CompletionRequest, values, COMPLETION_NEUTRAL)


def read_fields(kind: type[W], values: Mapping[str, Any], neutral: Neutral) -> W:
    """Return `values` as `kind`. Raises InvalidRequest; fields that nobody knows are only logged."""
    try:
        request = kind.model_validate(values)
    except ValidationError as cause:
        raise _invalid(cause) from cause
    if log.isEnabledFor(logging.DEBUG) and (unknown := unknown_fields(values, kind.model_fields, neutral)):
        log.debug("unknown fields ignored", extra={"fields": [shorten(field) for field in unknown[:16]]})
    return request


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`. Raises InvalidRequest for anything else, also for one nested too deeply."""
    try:
        body.decode()
    except UnicodeDecodeError as cause:
        raise InvalidRequest(f"the body is not UTF-8: byte {cause.start} is 0x{body[cause.start]:02x}") from cause
    try:
        # NaN and infinity get past here, so that the field's own check can name the field.
        values = pydantic_core.from_json(body, allow_inf_nan=True, cache_strings="none")
    except ValueError as cause:
        raise InvalidRequest(f"the body is not valid JSON: {cause}") from cause
    if not isinstance(values, dict):
        raise InvalidRequest(f"the body must be a JSON object, found {type(values).__name__}")
    return values


def _invalid(cause: ValidationError) -> InvalidRequest:
    error = _most_telling(cause.errors(include_url=False, include_context=False))
    param = _path(error["loc"])
    found = "" if error["type"] == "missing" else f", found {shorten(error['input'])}"
    return InvalidRequest(f"{param}: {error['msg'].removeprefix('Value error, ')}{found}", param=param)


def _most_telling(errors: Sequence[Any]) -> Any:
    """Return the first error; of the branches of a union, the one that got furthest into the value."""
    first = _path(errors[0]["loc"])
    same_field = [error for error in errors if _path(error["loc"]).startswith(first)]
    return max(same_field, key=lambda error: (len(_path(error["loc"])), not error["type"].endswith("_type")))


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_branch(step):
            path += f".{step}" if path else step
    return path


def _is_branch(step: str) -> bool:
    return "[" in step or step in UNION_BRANCHES
