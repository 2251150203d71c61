"""Server-sent events and errors in the shape that OpenAI's clients read."""

import json
from json.encoder import encode_basestring
from typing import Any

from twostep.core.errors import ServingError

Json = dict[str, Any]
DONE_DATA = "[DONE]"
DONE = f"data: {DONE_DATA}\n\n".encode()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
TEXT_MARK = "\0"
"""Stands for the text in an event that is written once and filled many times."""

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}


def event(body: Json) -> bytes:
    return b"data: " + compact(body) + b"\n\n"


def compact(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


class TextEvent:
    """The event `marked`, written once and filled with a text where TEXT_MARK stands: only that is encoded for each token."""

    def __init__(self, marked: Json) -> None:
        # The text comes last among the values that a client can choose, so its mark is found from the right.
        head, _, tail = event(marked).rpartition(compact(TEXT_MARK))
        self._head, self._tail = head.decode(), tail.decode()

    def filled(self, text: str) -> bytes:
        return f"{self._head}{encode_basestring(text)}{self._tail}".encode()


def error_body(error: ServingError) -> Json:
    return {"error": {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}}


def error_event(error: ServingError) -> bytes:
    """Return the event that ends a stream which has already begun."""
    return event(error_body(error))


def timing_comment(timing: str) -> bytes:
    """Return a Server-Timing as a comment, which every reader of events passes over: headers are gone when it is known."""
    return f": server-timing: {timing}\n\n".encode()


def error_type(error: ServingError) -> str:
    return ERROR_TYPES.get(error.http_status, "invalid_request_error" if error.http_status < 500 else "server_error")
