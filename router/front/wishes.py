"""What a client asks beside its request: how urgent it is, by when it wants tokens, and whom it belongs to."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from twostep.core.errors import InvalidRequest
from twostep.core.request import DEFAULT_LEVEL, ServiceLevel
from twostep.router.front.openai.generation_fields import MAX_PRIORITY, GenerationFields
from twostep.router.front.request_record import CLIENT_ID

TENANT_KEY = "twostep-tenant"
PRIORITY_KEY = "twostep-priority"
SESSION_KEY = "twostep-session"
TTFT_KEY = "x-slo-ttft-ms"
TPOT_KEY = "x-slo-tpot-ms"
DEADLINE_KEY = "x-deadline-ms"

MAX_MS = 86_400_000.0
"""A day."""
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")
NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")

Given = Callable[[str], str | None]
"""Returns the value of a header, or of a gRPC call's metadata."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """`timeout_s` counts from the request's arrival; None: the router's own limit."""

    level: ServiceLevel = DEFAULT_LEVEL
    session: str = ""
    timeout_s: float | None = None

    def with_fields(self, fields: GenerationFields) -> "Wishes":
        """Return these, or what the request itself says where it does."""
        if fields.priority is None and not fields.prompt_cache_key:
            return self
        priority = self.level.priority if fields.priority is None else fields.priority
        return replace(self, level=replace(self.level, priority=priority), session=fields.prompt_cache_key or self.session)


NO_WISHES = Wishes()


def read_wishes(given: Given) -> Wishes:
    """Return what headers or metadata ask for. Raises InvalidRequest, naming the key, what is expected and what was found."""
    deadline_ms = _milliseconds(given, DEADLINE_KEY)
    return Wishes(
        ServiceLevel(
            priority=_priority(given),
            tenant=_name(given, TENANT_KEY),
            ttft_s=_seconds(_milliseconds(given, TTFT_KEY)),
            tpot_s=_seconds(_milliseconds(given, TPOT_KEY)),
        ),
        session=_name(given, SESSION_KEY),
        timeout_s=_seconds(deadline_ms),
    )


def _priority(given: Given) -> int:
    text = given(PRIORITY_KEY)
    if text is None:
        return 0
    if not WHOLE_NUMBER.fullmatch(text) or abs(int(text)) > MAX_PRIORITY:
        raise _wrong(PRIORITY_KEY, f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, lower is served earlier", text)
    return int(text)


def _name(given: Given, key: str) -> str:
    text = given(key)
    if text is None:
        return ""
    if not CLIENT_ID.fullmatch(text):
        raise _wrong(key, "up to 128 letters, digits and ._:/+=@-", text)
    return text


def _milliseconds(given: Given, key: str) -> float | None:
    text = given(key)
    if text is None:
        return None
    if not NUMBER.fullmatch(text) or not 0 < float(text) <= MAX_MS:
        raise _wrong(key, f"milliseconds, more than 0 and at most {MAX_MS:g}", text)
    return float(text)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _wrong(key: str, expected: str, found: str) -> InvalidRequest:
    return InvalidRequest(f"{key}: expected {expected}; found {found[:80]!r}", param=key)
