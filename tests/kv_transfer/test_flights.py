"""When writes to a peer count as stuck."""

from twostep.kv_transfer.flights import Flights
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.kv_transfer.nodes import node

P, Q = node("p"), node("q")


def test_writes_are_stuck_when_none_has_ended_for_so_long() -> None:
    clock = ManualClock()
    flights = Flights(clock)
    flights.posted(P)
    clock.advance(2)
    flights.posted(P)
    assert (flights.are_stuck(P, for_s=2), flights.are_stuck(P, for_s=3)) == (True, False)


def test_one_that_ends_shows_that_the_others_move() -> None:
    clock = ManualClock()
    flights = Flights(clock)
    flights.posted(P)
    flights.posted(P)
    clock.advance(2)
    flights.ended(P)
    clock.advance(1)
    assert not flights.are_stuck(P, for_s=2)
    clock.advance(1)
    assert flights.are_stuck(P, for_s=2)


def test_a_peer_without_writes_in_flight_is_never_stuck() -> None:
    clock = ManualClock()
    flights = Flights(clock)
    flights.posted(P)
    flights.posted(Q)
    flights.ended(P)
    clock.advance(100)
    assert (flights.are_stuck(P, for_s=1), flights.are_stuck(Q, for_s=1)) == (False, True)
