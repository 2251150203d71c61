"""What a node keeps of its steps and of the phases of requests."""

from twostep.core import spans as spans_module
from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId
from twostep.engine.step_record import StepRecord
from twostep.node.trace import Span, Tracer
from twostep.tests.handoff.clock import ManualClock

NODE = NodeRef(NodeId("p"), Incarnation(1))
A, B = RequestId("a"), RequestId("b")


def a_step(number: int, started_at: float) -> StepRecord:
    return StepRecord(number, started_at, 1.0, None, 1, 1, 0, 0, 0, 512)


def test_a_phase_lasts_until_the_next_and_the_last_until_the_end() -> None:
    clock = ManualClock()
    tracer = Tracer(clock)
    tracer.enter(A, 1, "queued")
    clock.advance(2.0)
    tracer.enter(A, 1, "computing")
    clock.advance(3.0)
    tracer.leave(A, 1)
    tracer.leave(A, 1)
    assert tracer.read(NODE).spans == (Span(A, 1, "queued", 0.0, 2.0), Span(A, 1, "computing", 2.0, 3.0))


def test_what_still_lasts_comes_last_and_attempts_are_apart() -> None:
    clock = ManualClock()
    tracer = Tracer(clock)
    tracer.enter(A, 1, "sending")
    tracer.enter(A, 2, "queued")
    clock.advance(1.0)
    tracer.leave(A, 1)
    assert tracer.read(NODE).spans == (Span(A, 1, "sending", 0.0, 1.0), Span(A, 2, "queued", 0.0, None))


def test_the_rings_keep_the_latest() -> None:
    clock = ManualClock()
    tracer = Tracer(clock, max_steps=2, max_spans=1)
    for number in (1, 2, 3):
        tracer.step(a_step(number, float(number)))
    for request in (A, B):
        tracer.enter(request, 1, "queued")
        tracer.leave(request, 1)
    trace = tracer.read(NODE)
    assert [step.number for step in trace.steps] == [2, 3]
    assert [span.request for span in trace.spans] == ["b"]


def test_what_ended_longer_ago_than_asked_for_is_left_out() -> None:
    clock = ManualClock()
    tracer = Tracer(clock)
    tracer.enter(A, 1, "queued")
    tracer.enter(B, 1, "queued")
    clock.advance(5.0)
    tracer.leave(A, 1)
    tracer.step(a_step(1, 4.0))
    tracer.step(a_step(2, 8.5))
    clock.advance(5.0)
    trace = tracer.read(NODE, within_s=2.0)
    assert (trace.now, [step.number for step in trace.steps], [span.request for span in trace.spans]) == (10.0, [2], ["b"])


def test_the_phases_of_a_traced_request_go_to_the_sink_below_its_routers_span() -> None:
    clock, spans = ManualClock(), list[spans_module.Span]()
    tracer = Tracer(clock, sink=Sink(spans), role="decode")
    tracer.enter(A, 2, "filling", f"00-{'a' * 32}-{'b' * 16}-01")
    clock.advance(2.0)
    tracer.enter(A, 2, "attached", f"00-{'a' * 32}-{'b' * 16}-00")
    tracer.leave(A, 2)
    tracer.enter(B, 1, "queued")
    tracer.leave(B, 1)
    [span] = spans
    assert (span.name, span.context.trace, span.parent, span.duration_s) == ("decode filling", "a" * 32, "b" * 16, 2.0)
    assert span.attributes == {"twostep.request": "a", "twostep.attempt": 2}


class Sink:
    def __init__(self, spans: list[spans_module.Span]) -> None:
        self._spans = spans

    def put(self, span: spans_module.Span) -> None:
        self._spans.append(span)
