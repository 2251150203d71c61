"""A request whose tokens nobody takes is paused, for whatever reason, goes on when none is left, and is overdue in time."""

from dataclasses import dataclass, field

from twostep.core.ids import Attempt, BlockHash, RequestId, RouterId
from twostep.core.request import Request, SamplingParams, StopRules, Timing, TokenEvent
from twostep.decode_node.backpressure import Backpressure
from twostep.decode_node.handoff import Handoff
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.orders import ReserveOrder
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine
from twostep.engine.sequence import PrefixChain, Prepared
from twostep.node.leases import Heartbeat
from twostep.node.metrics import NodeMetrics
from twostep.node.trace import Tracer
from twostep.tests.engine.fakes import ONE, ask, build_engine, put
from twostep.tests.handoff.clock import ManualClock

R1, R2 = RouterId("r1"), RouterId("r2")
A, B = RequestId("a"), RequestId("b")


@dataclass(slots=True)
class Node:
    """An engine, the streams of its tokens, and what joins them; `a` is of router r1, `b` of r2."""

    clock: ManualClock = field(default_factory=ManualClock)
    engine: Engine = field(default_factory=build_engine)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)
    handoffs: Handoffs = field(default_factory=Handoffs)
    streams: TokenStreams = field(init=False)
    backpressure: Backpressure = field(init=False)

    def __post_init__(self) -> None:
        self.backpressure = Backpressure(self.engine, self.handoffs, self.metrics, self.clock, max_unread=2, pause_s=60.0)
        self.streams = TokenStreams(self.backpressure.read)
        for request, router in ((A, R1), (B, R2)):
            self.handoffs.add(_handoff(request, router, self.clock))
            put(self.engine, ask(request, [1], max_tokens=50))

    def emit(self, request: RequestId, router: RouterId, index: int) -> None:
        handoff = self.handoffs.find(request)
        assert handoff is not None
        self.streams.emit(router, TokenEvent(request, 1, index, 7))
        self.backpressure.emitted(handoff, self.streams)

    def running(self) -> list[str]:
        result = self.engine.step()
        return [chunk.request for chunk in result.batch.chunks] if result else []

    def pauses(self, why: str) -> float:
        return self.metrics.registry.get_sample_value("twostep_pauses_total", {"why": why}) or 0.0


def _handoff(request: RequestId, router: RouterId, clock: ManualClock) -> Handoff:
    asked = Request(request, (1,), SamplingParams(0), StopRules(50))
    order = ReserveOrder(router, asked, Attempt(1), None, Timing(remaining_s=600.0))
    return Handoff(order, Prepared(asked, PrefixChain(BlockHash(b""), 32), 1), Tracer(clock), clock)


def beat(router: RouterId, *held: RequestId) -> Heartbeat:
    return Heartbeat(router, 1, 10.0, frozenset(held), frozenset(held))


async def test_a_request_pauses_with_too_many_unread_tokens_and_goes_on_when_they_are_read() -> None:
    node = Node()
    node.emit(A, R1, 0)
    assert node.running() == ["a", "b"]
    node.emit(A, R1, 1)
    node.emit(A, R1, 2)
    assert (node.running(), len(node.backpressure), node.pauses("unread")) == (["b"], 1, 1)
    await anext(node.streams.read(R1))
    assert (node.running(), len(node.backpressure)) == (["a", "b"], 0)


def test_a_request_that_its_router_holds_pauses_until_a_heartbeat_leaves_it_out() -> None:
    node = Node()
    node.backpressure.hear(beat(R1, A))
    node.backpressure.hear(beat(R1, A))
    node.backpressure.hear(beat(R2))
    assert (node.running(), node.pauses("held")) == (["b"], 1)
    node.backpressure.hear(beat(R1))
    assert node.running() == ["a", "b"]


def test_nobody_holds_another_routers_requests() -> None:
    node = Node()
    node.backpressure.hear(beat(R2, A))
    assert node.running() == ["a", "b"]


async def test_a_request_with_two_reasons_goes_on_when_neither_is_left() -> None:
    node = Node()
    node.emit(A, R1, 0)
    node.emit(A, R1, 1)
    node.backpressure.hear(beat(R1, A))
    await anext(node.streams.read(R1))
    assert node.running() == ["b"]
    node.backpressure.hear(beat(R1))
    assert node.running() == ["a", "b"]


def test_a_pause_is_overdue_after_its_time_however_often_it_was_asked_for() -> None:
    node = Node()
    node.backpressure.hear(beat(R1, A))
    node.clock.advance(60.0)
    node.backpressure.hear(beat(R1, A))
    assert node.backpressure.overdue() == []
    node.clock.advance(0.5)
    assert node.backpressure.overdue() == [A]


def test_a_request_that_holds_nothing_yet_is_asked_again_later() -> None:
    node = Node()
    queued = RequestId("queued")
    node.handoffs.add(_handoff(queued, R1, node.clock))
    node.backpressure.hear(beat(R1, queued))
    assert len(node.backpressure) == 0
    put(node.engine, ask("queued", [1], max_tokens=50))
    node.backpressure.hear(beat(R1, queued))
    assert node.running() == ["a", "b"]


def test_a_request_that_was_paused_before_it_started_does_not_run() -> None:
    engine = build_engine()
    engine.reserve(ask("a", [1]), growth_tokens=1)
    assert engine.pause(A)
    engine.start(A, attempt=ONE)
    assert engine.step() is None
    engine.resume(A)
    assert engine.step() is not None
    engine.release(A)
    assert not engine.pause(A)
