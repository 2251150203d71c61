"""How much is ahead at a node, as far as a router can tell."""

from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId
from twostep.core.pace import PrefillCurve, RatePoint
from twostep.router.placement.node_load import NodeLoad, Work
from twostep.router.placement.node_view import NodeStatus

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")
NODE = NodeRef(NodeId("p"), Incarnation(1))
CURVE = PrefillCurve((RatePoint(0, 0.01),))


def load() -> NodeLoad:
    return NodeLoad(computes_for_others=True)


def status(queued_tokens: int = 0, num_running: int = 0, waiting_tokens: int = 0) -> NodeStatus:
    return NodeStatus(NODE, True, "", num_running=num_running, queued_tokens=queued_tokens, waiting_tokens=waiting_tokens)


def test_what_is_placed_counts_before_it_is_sent() -> None:
    ahead = load()
    ahead.expect(A, Work(100, 1.0), 10.0)
    ahead.expect(B, Work(50, 0.5), 10.2)
    assert (ahead.num_requests, ahead.free_at) == (2, 11.5)
    ahead.send(A, Work(100, 1.0), 10.4)
    assert (ahead.num_requests, ahead.free_at) == (2, 11.5)


def test_time_that_passes_is_time_that_was_worked() -> None:
    ahead = load()
    ahead.send(A, Work(100, 1.0), 10.0)
    ahead.send(B, Work(100, 1.0), 20.0)
    assert ahead.free_at == 21.0


def test_when_the_first_is_computed_the_next_begins() -> None:
    ahead = load()
    for request in (A, B, C):
        ahead.send(request, Work(100, 1.0), 10.0)
    ahead.computed(A, 10.5)
    assert ahead.free_at == 12.5
    ahead.remove(C, 10.6)
    assert ahead.free_at == 11.5
    assert ahead.num_requests == 2


def test_a_node_says_what_other_routers_have_placed_there() -> None:
    ahead = load()
    ahead.send(A, Work(100, 1.0), 10.0)
    ahead.hear(status(queued_tokens=300, num_running=3), ahead.mark(), CURVE, 10.5)
    assert (ahead.num_requests, ahead.free_at) == (3, 13.5)
    ahead.remove(A, 11.0)
    assert (ahead.num_requests, ahead.free_at) == (2, 13.0)


def test_a_node_says_how_far_it_has_come() -> None:
    ahead = load()
    ahead.send(A, Work(100, 1.0), 10.0)
    ahead.expect(B, Work(100, 1.0), 10.0)
    ahead.hear(status(queued_tokens=20, num_running=1), ahead.mark(), CURVE, 10.9)
    assert round(ahead.free_at, 6) == 10.9 + 0.2 + 1.0


def test_an_answer_from_before_the_end_of_a_request_does_not_bring_it_back() -> None:
    ahead = load()
    ahead.send(A, Work(100, 1.0), 10.0)
    mark = ahead.mark()
    ahead.remove(A, 10.5)
    ahead.hear(status(queued_tokens=100, num_running=1), mark, CURVE, 10.6)
    assert (ahead.num_requests, ahead.free_at) == (0, 10.6)


def test_what_waits_for_memory_at_a_decode_node_is_not_computed_there() -> None:
    ahead = NodeLoad(computes_for_others=False)
    ahead.hear(status(queued_tokens=500, waiting_tokens=400, num_running=2), ahead.mark(), CURVE, 10.0)
    assert (ahead.num_requests, ahead.free_at) == (2, 11.0)


def test_blocks_count_until_the_node_has_told_of_them() -> None:
    ahead = load()
    ahead.send(A, Work(blocks=7), 10.0)
    mark = ahead.mark()
    ahead.send(B, Work(blocks=5), 10.0)
    assert ahead.untold_blocks == 12
    ahead.hear(status(), mark, CURVE, 10.1)
    assert ahead.untold_blocks == 5
