"""A request's spans as its router saw it: one for the whole, one below it for each part of its bill."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from twostep.core.spans import Span, SpanSink, TraceContext
from twostep.router.bill import TTFT_PARTS
from twostep.router.requests.history import RequestStory


@dataclass(frozen=True, slots=True)
class Traced:
    """A request that somebody wants to see: the place of its own span, and the id of its client's, empty where it has none."""

    context: TraceContext
    parent: str

    def header(self) -> str:
        """Return what the nodes are told."""
        return self.context.header()


class Tracing:
    """Decides which requests are traced, and lets their spans go to `sink` when they have ended."""

    def __init__(self, sink: SpanSink, share: float, chance: Callable[[], float] = random.random) -> None:
        self._sink = sink
        self._share = share
        self._chance = chance

    @contextmanager
    def following(self, traceparent: str, story: RequestStory, elapsed_s: Callable[[], float]) -> Iterator[Traced | None]:
        """Yield the trace of the request that is served in the block, None when it has none.

        The client decides that where it has sent a `traceparent`. `elapsed_s` is how long ago the request arrived.
        """
        traced = self._begin(traceparent)
        try:
            yield traced
        finally:
            if traced:
                for span in request_spans(traced, story, elapsed_s()):
                    self._sink.put(span)

    def _begin(self, traceparent: str) -> Traced | None:
        if above := TraceContext.parse(traceparent):
            return Traced(above.child(), above.span) if above.is_sampled else None
        return Traced(TraceContext.new(is_sampled=True), "") if self._chance() < self._share else None


def request_spans(traced: Traced, story: RequestStory, elapsed_s: float) -> Iterator[Span]:
    """Yield the span of a request that has ended, and those of the parts of its bill, one after the other."""
    bill = story.bill
    yield Span(
        "request",
        traced.context,
        traced.parent,
        story.arrived_at,
        max(bill.total, elapsed_s) if bill else elapsed_s,
        {
            "twostep.request": story.request,
            "twostep.outcome": story.outcome,
            "twostep.attempts": len(story.attempts),
            "twostep.prompt_tokens": story.num_prompt_tokens,
        },
        error="" if bill else story.outcome,
        is_server=True,
    )
    if bill is None:
        return
    began = story.arrived_at
    for part in TTFT_PARTS:
        if seconds := getattr(bill, part):
            yield _part(traced, part, began, seconds)
        began += seconds
    yield _part(traced, "decode", began, max(0.0, bill.total - bill.ttft))


def _part(traced: Traced, name: str, began: float, seconds: float) -> Span:
    return Span(name, traced.context.child(), traced.context.span, began, seconds)
