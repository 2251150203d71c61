"""What a node keeps of its steps and of the phases of requests."""

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
