"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON. A thread of its own sends what has gathered.

A few lines instead of OpenTelemetry's packages: docs/decisions/0020-spans-without-an-sdk.md.
"""

import json
import logging
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from twostep.core.config import config
from twostep.core.errors import ConfigError
from twostep.core.spans import Span
from twostep.core.threads import OWN_THREADS, Threads

log = logging.getLogger(__name__)

MAX_WAITING = 8192
MAX_BATCH = 512
SEND_EVERY_S = 1.0
TIMEOUT_S = 5.0
LAST_SEND_S = 2.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
KIND_INTERNAL, KIND_SERVER = 1, 2
STATUS_ERROR = 2


@config
class TracingConfig:
    """Where spans are sent, and of how many requests."""

    endpoint: str
    """An OpenTelemetry collector's OTLP endpoint over HTTP, such as `http://localhost:4318`."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the requests that are traced when their client has not decided that itself, in `traceparent`."""


class OtlpExporter:
    """A SpanSink. `turn` sends; it is a loop's."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._resource = {"service.name": service, "service.instance.id": instance}
        self._waiting: deque[Span] = deque()
        self._is_failing = False
        self.num_dropped = 0

    def put(self, span: Span) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(span)
        else:
            self.num_dropped += 1

    def turn(self) -> float:
        """Send what has gathered. Returns how long to rest before the next time."""
        batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        if batch:
            self._send(batch)
        return 0.0 if len(self._waiting) >= MAX_BATCH else SEND_EVERY_S

    def _send(self, batch: Sequence[Span]) -> None:
        body = json.dumps(traces(batch, self._resource)).encode()
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        try:
            with OPENER.open(request, timeout=TIMEOUT_S):
                self._is_failing = False
        except OSError as cause:
            self.num_dropped += len(batch)
            if not self._is_failing:
                log.warning("spans cannot be sent", extra={"endpoint": self._url, "reason": str(cause)})
            self._is_failing = True


@contextmanager
def exporting(
    config: TracingConfig | None, service: str, instance: str, threads: Threads = OWN_THREADS
) -> Iterator[OtlpExporter | None]:
    """Yield where the block's spans go; None where nobody wants any. Raises ConfigError for an endpoint that is none."""
    if config is None:
        yield None
        return
    if not config.endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"tracing.endpoint: expected http://HOST:PORT, found {config.endpoint!r}")
    exporter = OtlpExporter(config.endpoint, service, instance)
    loop = threads.loop("spans", exporter.turn, _log_fault)
    loop.start()
    try:
        yield exporter
    finally:
        if loop.stop(LAST_SEND_S):
            exporter.turn()


def traces(batch: Sequence[Span], resource: dict[str, str]) -> dict[str, Any]:
    """Return the body of an ExportTraceServiceRequest in OTLP's JSON."""
    scope = {"scope": {"name": "twostep"}, "spans": [_span(span) for span in batch]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.context.trace,
        "spanId": span.context.span,
        "name": span.name,
        "kind": KIND_SERVER if span.is_server else KIND_INTERNAL,
        # 64-bit integers are strings in protobuf's JSON.
        "startTimeUnixNano": str(int(span.started_at * 1e9)),
        "endTimeUnixNano": str(int((span.started_at + span.duration_s) * 1e9)),
        "attributes": _attributes(span.attributes),
    }
    if span.parent:
        told["parentSpanId"] = span.parent
    if span.error:
        told["status"] = {"code": STATUS_ERROR, "message": span.error}
    return told


def _attributes(values: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | int) -> dict[str, str]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _log_fault(fault: Exception) -> None:
    log.error("no more spans are sent", exc_info=fault)
