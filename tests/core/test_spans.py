"""W3C trace contexts, and spans as OTLP writes them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from twostep.core.errors import ConfigError
from twostep.core.otlp import MAX_WAITING, OtlpExporter, TracingConfig, exporting, traces
from twostep.core.spans import Span, TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(TRACE, "b" * 16, is_sampled=True)


def test_a_context_is_read_as_it_is_written() -> None:
    context = TraceContext.parse(HEADER)
    assert context == TraceContext(TRACE, SPAN, is_sampled=True)
    assert context.header() == HEADER
    below = context.child()
    assert (below.trace, below.is_sampled) == (TRACE, True)
    assert below.span != SPAN


@pytest.mark.parametrize(
    "header",
    ["", HEADER.upper(), HEADER[:-3], f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"],
)
def test_a_malformed_context_is_none(header: str) -> None:
    assert TraceContext.parse(header) is None


def test_a_client_may_ask_not_to_be_traced() -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-00")
    assert context is not None
    assert not context.is_sampled


def test_spans_are_written_as_otlp_wants_them() -> None:
    span = Span(
        "prefill", CONTEXT, SPAN, 1.5, 0.25, {"twostep.attempt": 2, "twostep.request": "r"}, error="lost", is_server=True
    )
    told = traces([span], {"service.name": "twostep.router"})
    [resource] = told["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "twostep.router"}}]
    assert resource["scopeSpans"][0]["spans"] == [
        {
            "traceId": TRACE,
            "spanId": "b" * 16,
            "parentSpanId": SPAN,
            "name": "prefill",
            "kind": 2,
            "startTimeUnixNano": "1500000000",
            "endTimeUnixNano": "1750000000",
            "attributes": [
                {"key": "twostep.attempt", "value": {"intValue": "2"}},
                {"key": "twostep.request", "value": {"stringValue": "r"}},
            ],
            "status": {"code": 2, "message": "lost"},
        }
    ]


def test_what_waits_for_a_deaf_collector_is_bounded_and_the_rest_counted() -> None:
    exporter = OtlpExporter("http://127.0.0.1:9", "s", "i")
    for _ in range(MAX_WAITING + 3):
        exporter.put(Span("x", CONTEXT, "", 0.0, 0.0))
    assert exporter.num_dropped == 3


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tracing\.endpoint"), exporting(TracingConfig(endpoint="localhost"), "s", "i"):
        pass


def test_nobody_who_wants_spans_means_nowhere_to_put_them() -> None:
    with exporting(None, "s", "i") as sink:
        assert sink is None


@pytest.mark.processes
def test_a_collector_gets_what_was_put_before_the_end() -> None:
    with collector() as (endpoint, heard):
        with exporting(TracingConfig(endpoint=endpoint), "twostep.router", "r1") as sink:
            assert sink is not None
            sink.put(Span("request", CONTEXT, "", 1.0, 1.0))
        names = [
            span["name"]
            for path, body in heard
            if path == "/v1/traces"
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        assert names == ["request"]


@pytest.mark.processes
def test_a_collector_that_is_not_there_costs_spans_and_nothing_else() -> None:
    with collector() as (endpoint, _):
        pass
    with exporting(TracingConfig(endpoint=endpoint), "twostep.router", "r1") as sink:
        assert sink is not None
        sink.put(Span("request", CONTEXT, "", 1.0, 1.0))
    assert sink.num_dropped == 1


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the endpoint of a collector, and what it has heard."""
    heard: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.append((self.path, json.loads(body)))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
