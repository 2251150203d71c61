"""What a request was at, and when, for whoever collects traces: spans, and the W3C trace context that joins them."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

TRACE_KEY = "traceparent"
"""The name of the HTTP header, and of gRPC's metadata, that a trace context travels in."""
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span's place in its trace: 32 and 16 hexadecimal digits. `is_sampled`: somebody wants to see it."""

    trace: str
    span: str
    is_sampled: bool

    @classmethod
    def new(cls, *, is_sampled: bool) -> Self:
        """Begin a trace."""
        return cls(secrets.token_hex(16), secrets.token_hex(8), is_sampled)

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Return what a traceparent says; None where it is malformed: then its specification asks to begin anew."""
        found = TRACEPARENT.fullmatch(header)
        if found is None or not int(found[1], 16) or not int(found[2], 16):
            return None
        return cls(found[1], found[2], bool(int(found[3], 16) & SAMPLED))

    def child(self) -> "TraceContext":
        """Return the place of a new span below this one."""
        return TraceContext(self.trace, secrets.token_hex(8), self.is_sampled)

    def header(self) -> str:
        return f"00-{self.trace}-{self.span}-{int(self.is_sampled):02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """`parent` is the id of the span above it, empty where there is none; times in seconds since 1970; `error` empty: none."""

    name: str
    context: TraceContext
    parent: str
    started_at: float
    duration_s: float
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    error: str = ""
    is_server: bool = False


class SpanSink(Protocol):
    """Where spans go. Never waits: what it cannot take is dropped, and counted."""

    def put(self, span: Span) -> None: ...
