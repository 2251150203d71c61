"""A picture of a prefix cache that is wrong for long raises an alarm, once."""

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.router.placement.prefix_accuracy import MIN_REQUESTS, PrefixAccuracy

NODE = NodeRef(NodeId("p"), Incarnation(1))


def test_a_node_that_never_has_what_is_expected_is_astray_from_some_requests_on() -> None:
    accuracy = PrefixAccuracy()
    turned = [accuracy.note(NODE, 320, 0) for _ in range(MIN_REQUESTS + 5)]
    assert turned == [None] * (MIN_REQUESTS - 1) + [True] + [None] * 5
    assert accuracy.share_wrong(NODE) == 1.0


def test_a_node_that_has_what_nobody_expects_is_astray_too() -> None:
    accuracy = PrefixAccuracy()
    assert [accuracy.note(NODE, 0, 320) for _ in range(MIN_REQUESTS)][-1] is True


def test_a_node_is_trusted_again_when_it_has_what_is_expected() -> None:
    accuracy = PrefixAccuracy()
    for _ in range(MIN_REQUESTS):
        accuracy.note(NODE, 320, 0)
    turned = [accuracy.note(NODE, 320, 320) for _ in range(30)]
    assert turned.count(False) == 1
    assert accuracy.share_wrong(NODE) < 0.1


def test_a_few_blocks_more_or_less_are_no_alarm() -> None:
    accuracy = PrefixAccuracy()
    assert {accuracy.note(NODE, 320, 256) for _ in range(30)} == {None}
    assert {accuracy.note(NODE, 0, 0) for _ in range(30)} == {None}


def test_nodes_that_served_longest_ago_are_forgotten() -> None:
    accuracy, other = PrefixAccuracy(capacity=1), NodeRef(NodeId("q"), Incarnation(1))
    accuracy.note(NODE, 320, 0)
    accuracy.note(other, 320, 0)
    assert (accuracy.share_wrong(NODE), accuracy.share_wrong(other)) == (0.0, 1.0)
