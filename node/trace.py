"""What a node did lately, step by step and request by request: bounded rings, read by `twostep trace`."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from twostep.core import spans
from twostep.core.clock import Clock
from twostep.core.ids import NodeRef, RequestId
from twostep.core.spans import SpanSink, TraceContext
from twostep.engine.step_record import StepRecord

MAX_STEPS = 16384
MAX_SPANS = 16384


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt of a request was in `phase` from `started_at` on; `duration_s` is None while it still is.

    `traceparent` is the request's span at its router, empty when it has none.
    """

    request: RequestId
    attempt: int
    phase: str
    started_at: float
    duration_s: float | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The latest steps and spans in order of their ends, living spans last; `now` and all times are the node's clock's."""

    node: NodeRef
    now: float
    steps: tuple[StepRecord, ...]
    spans: tuple[Span, ...]


class Tracer:
    """Keeps the latest steps and phases of requests; `sink` gets the phases of those that are traced, `role` before each name.

    All methods are the control thread's.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        sink: SpanSink | None = None,
        role: str = "",
        max_steps: int = MAX_STEPS,
        max_spans: int = MAX_SPANS,
    ) -> None:
        self._clock = clock
        self._sink = sink
        self._role = role
        self._steps: deque[StepRecord] = deque(maxlen=max_steps)
        self._past: deque[Span] = deque(maxlen=max_spans)
        self._living: dict[tuple[RequestId, int], Span] = {}

    def step(self, record: StepRecord) -> None:
        self._steps.append(record)

    def enter(self, request: RequestId, attempt: int, phase: str, traceparent: str = "") -> None:
        """An attempt of a request is in `phase` from now on; the phase before it is over."""
        self.leave(request, attempt)
        self._living[request, attempt] = Span(request, attempt, phase, self._clock(), traceparent=traceparent)

    def leave(self, request: RequestId, attempt: int) -> None:
        """An attempt of a request is over; one that is not known changes nothing."""
        span = self._living.pop((request, attempt), None)
        if span:
            self._past.append(replace(span, duration_s=self._clock() - span.started_at))
            if span.traceparent and self._sink:
                self._export(span, self._sink)

    def _export(self, span: Span, sink: SpanSink) -> None:
        above = TraceContext.parse(span.traceparent)
        if above and above.is_sampled:
            lasted_s = self._clock() - span.started_at
            attributes: dict[str, str | int] = {"twostep.request": span.request, "twostep.attempt": span.attempt}
            name, began = f"{self._role} {span.phase}", time.time() - lasted_s
            sink.put(spans.Span(name, above.child(), above.span, began, lasted_s, attributes))

    def read(self, node: NodeRef, within_s: float | None = None) -> NodeTrace:
        """Return what is kept; with `within_s`, what ended in that many seconds before now, or has not ended."""
        now = self._clock()
        since = float("-inf") if within_s is None else now - within_s
        steps = tuple(step for step in self._steps if step.started_at + step.duration_s >= since)
        return NodeTrace(node, now, steps, (*_ended_since(since, self._past), *self._living.values()))


def _ended_since(since: float, spans: Iterable[Span]) -> Iterable[Span]:
    return (span for span in spans if span.started_at + (span.duration_s or 0.0) >= since)
