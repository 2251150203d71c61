"""Which requests are traced, and the spans that a router makes of one."""

from itertools import pairwise
from pathlib import Path

import pytest

from twostep.core.ids import RequestId
from twostep.core.spans import Span, TraceContext
from twostep.router.bill import TTFT_PARTS, make_bill
from twostep.router.requests.history import RequestStory
from twostep.router.requests.tracing import Traced, Tracing, request_spans
from twostep.tests.core.test_spans import HEADER, SPAN, TRACE, collector
from twostep.tests.router.cluster import chat_body, cluster
from twostep.tests.router.test_bill import DECODE, PREFILL, TIMES

BILL = make_bill(TIMES, PREFILL, DECODE, num_tokens=5, cached=32, attempts=1, prefill_node="p", decode_node="d")


class Sink:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, span: Span) -> None:
        self.spans.append(span)


def story() -> RequestStory:
    return RequestStory(RequestId("req-1"), "", 1000.0, 100)


def test_the_spans_of_the_parts_follow_each_other_below_the_requests_own() -> None:
    told = story()
    told.bill, told.outcome = BILL, "stop"
    traced = Traced(TraceContext(TRACE, "c" * 16, is_sampled=True), SPAN)
    whole, *parts = request_spans(traced, told, 3.5)
    assert (whole.name, whole.parent, whole.started_at, whole.duration_s, whole.error) == ("request", SPAN, 1000.0, 3.5, "")
    assert [span.name for span in parts] == [*(part for part in TTFT_PARTS if getattr(BILL, part)), "decode"]
    assert {(span.context.trace, span.parent) for span in parts} == {(TRACE, "c" * 16)}
    for before, after in pairwise(parts):
        assert after.started_at == pytest.approx(before.started_at + before.duration_s)
    assert parts[-1].started_at == pytest.approx(1000.0 + BILL.ttft)
    assert parts[-1].started_at + parts[-1].duration_s == pytest.approx(1000.0 + BILL.total)


def test_a_request_that_fails_is_one_span_with_its_error() -> None:
    told = story()
    told.outcome = "node_unavailable"
    [whole] = request_spans(Traced(TraceContext.new(is_sampled=True), ""), told, 2.0)
    assert (whole.duration_s, whole.error) == (2.0, "node_unavailable")


@pytest.mark.parametrize(("header", "chance", "is_traced"), [("", 0.4, True), ("", 0.6, False), (HEADER, 0.9, True)])
def test_the_client_decides_whether_its_request_is_traced_else_chance(header: str, chance: float, is_traced: bool) -> None:
    sink = Sink()
    with Tracing(sink, share=0.5, chance=lambda: chance).following(header, story(), lambda: 1.0) as traced:
        assert (traced is not None) == is_traced
    assert len(sink.spans) == is_traced
    if traced and header:
        assert (traced.context.trace, traced.parent) == (TRACE, SPAN)


def test_a_client_that_does_not_want_to_be_traced_is_not() -> None:
    sink = Sink()
    with Tracing(sink, share=1.0).following(HEADER[:-1] + "0", story(), lambda: 1.0) as traced:
        assert traced is None
    assert sink.spans == []


@pytest.mark.processes
async def test_the_nodes_are_told_the_trace_that_the_client_began(tmp_path: Path) -> None:
    with collector() as (endpoint, heard):
        async with cluster(tmp_path, tracing={"endpoint": endpoint}) as running:
            reply = await running.http.post("/v1/chat/completions", json=chat_body(), headers={"traceparent": HEADER})
            assert reply.status_code == 200
            told = [*running.d.seen.traces, *running.p.seen.traces]
        spans = [
            span
            for _, body in heard
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
    [whole] = [span for span in spans if span["name"] == "request"]
    assert (whole["traceId"], whole["parentSpanId"]) == (TRACE, SPAN)
    assert told == [f"00-{TRACE}-{whole['spanId']}-01"] * 2


@pytest.mark.processes
async def test_where_nobody_collects_spans_nodes_are_told_of_no_trace(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.http.post("/v1/chat/completions", json=chat_body(), headers={"traceparent": HEADER})
        assert [*running.d.seen.traces, *running.p.seen.traces] == ["", ""]
