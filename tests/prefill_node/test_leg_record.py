"""What a prefill node claims about legs that are not here, and what it no longer can."""

from twostep.core.ids import Attempt, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.ticket import Leg
from twostep.node.handoff_messages import AbortState
from twostep.prefill_node.leg_record import LegRecord

P = NodeRef(NodeId("p"), Incarnation(1))
D = NodeRef(NodeId("d"), Incarnation(1))
DRAINED, NOT_DRAINED, UNKNOWN = AbortState.DRAINED, AbortState.NOT_DRAINED, AbortState.UNKNOWN


def leg(number: int, *, source: NodeRef = P, destination: NodeRef = D) -> Leg:
    return Leg(RequestId(f"r{number}"), Attempt(1), source, destination)


def record(capacity: int = 8) -> LegRecord:
    met = LegRecord(P, capacity)
    met.meet(D, Generation(10))
    return met


def test_a_leg_that_was_never_here_is_drained_and_can_never_begin() -> None:
    legs = record()
    assert legs.may_begin(leg(1), Generation(11))
    assert legs.refuse(leg(1), Generation(11)) is DRAINED
    assert not legs.may_begin(leg(1), Generation(11))
    assert legs.refuse(leg(1), Generation(11)) is DRAINED


def test_a_leg_that_has_ended_stands_as_it_ended() -> None:
    legs = record()
    legs.end(leg(1), Generation(11), NOT_DRAINED)
    legs.end(leg(1), Generation(11), DRAINED)
    assert legs.refuse(leg(1), Generation(11)) is NOT_DRAINED
    assert not legs.may_begin(leg(1), Generation(11))


def test_nothing_is_claimed_about_legs_from_before_the_acquaintance() -> None:
    legs = record()
    assert legs.refuse(leg(1), Generation(10)) is UNKNOWN
    assert not legs.may_begin(leg(1), Generation(10))


def test_nothing_is_claimed_about_strangers_and_earlier_lives() -> None:
    legs = record()
    stranger, earlier = NodeRef(NodeId("e"), Incarnation(1)), NodeRef(NodeId("p"), Incarnation(0))
    for unknown in (leg(1, destination=stranger), leg(1, source=earlier)):
        assert legs.refuse(unknown, Generation(99)) is UNKNOWN
        assert not legs.may_begin(unknown, Generation(99))


def test_what_is_forgotten_is_neither_claimed_nor_begun_again() -> None:
    legs = record(capacity=2)
    legs.end(leg(1), Generation(12), NOT_DRAINED)
    legs.refuse(leg(2), Generation(13))
    legs.refuse(leg(3), Generation(14))
    assert legs.refuse(leg(1), Generation(12)) is UNKNOWN
    assert not legs.may_begin(leg(1), Generation(12))
    assert legs.refuse(leg(4), Generation(11)) is UNKNOWN
    assert legs.refuse(leg(3), Generation(14)) is DRAINED


def test_an_acquaintance_made_anew_does_not_reach_further_back() -> None:
    legs = record()
    legs.end(leg(1), Generation(11), NOT_DRAINED)
    legs.forget(D)
    assert not legs.may_begin(leg(2), Generation(12))
    legs.meet(D, Generation(20))
    legs.meet(D, Generation(30))
    assert legs.refuse(leg(1), Generation(11)) is NOT_DRAINED
    assert legs.refuse(leg(2), Generation(20)) is UNKNOWN
    assert legs.may_begin(leg(3), Generation(21))
