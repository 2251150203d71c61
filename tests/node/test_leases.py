from twostep.core.ids import RequestId, RouterId
from twostep.node.leases import Heartbeat, HeartbeatVerdict, Leases
from twostep.tests.handoff.clock import ManualClock

R1, R2 = RouterId("r1"), RouterId("r2")
A, B = RequestId("a"), RequestId("b")


def beat(sequence: int, *live: RequestId, router: RouterId = R1) -> Heartbeat:
    return Heartbeat(router, sequence, 10.0, frozenset(live))


def test_a_request_is_abandoned_when_two_heartbeats_leave_it_out() -> None:
    leases = Leases(10.0, ManualClock())
    leases.own(A, R1)
    assert leases.hear(beat(1)).abandoned == ()
    assert leases.hear(beat(2)).abandoned == (A,)


def test_being_listed_once_forgives_an_earlier_miss() -> None:
    leases = Leases(10.0, ManualClock())
    leases.own(A, R1)
    leases.hear(beat(1))
    leases.hear(beat(2, A))
    assert leases.hear(beat(3)).abandoned == ()


def test_a_request_that_came_after_a_heartbeat_was_heard_has_no_miss_from_it() -> None:
    leases = Leases(10.0, ManualClock())
    leases.hear(beat(1))
    leases.own(A, R1)
    assert leases.hear(beat(2)).abandoned == ()


def test_a_listed_id_that_is_not_here_is_reported() -> None:
    leases = Leases(10.0, ManualClock())
    leases.own(A, R1)
    assert leases.hear(beat(1, A, B)).unknown == (B,)


def test_a_request_of_another_router_is_unknown_to_this_one() -> None:
    leases = Leases(10.0, ManualClock())
    leases.own(A, R2)
    assert leases.hear(beat(1, A)) == HeartbeatVerdict(unknown=(A,))


def test_an_older_heartbeat_changes_nothing() -> None:
    leases = Leases(10.0, ManualClock())
    leases.own(A, R1)
    leases.hear(beat(5, A))
    assert leases.hear(beat(4)) == HeartbeatVerdict(is_stale=True)
    assert leases.hear(beat(5)) == HeartbeatVerdict(is_stale=True)
    assert leases.hear(beat(6)).abandoned == ()


def test_all_requests_of_a_silent_router_end_and_those_of_the_other_live() -> None:
    clock = ManualClock()
    leases = Leases(10.0, clock)
    leases.own(A, R1)
    leases.own(B, R2)
    clock.now = 9.0
    leases.hear(beat(1, B, router=R2))
    clock.now = 10.5
    assert leases.expire() == {R1: (A,)}
    assert leases.expire() == {}


def test_a_lease_counts_from_receipt_and_lasts_as_long_as_the_router_asked() -> None:
    clock = ManualClock()
    leases = Leases(10.0, clock)
    leases.own(A, R1)
    leases.hear(Heartbeat(R1, 1, 3.0, frozenset({A})))
    clock.now = 3.0
    assert leases.expire() == {}
    clock.now = 3.1
    assert leases.expire() == {R1: (A,)}


def test_a_request_that_ended_is_neither_missed_nor_expired() -> None:
    clock = ManualClock()
    leases = Leases(10.0, clock)
    leases.own(A, R1)
    leases.disown(A)
    leases.disown(A)
    assert leases.hear(beat(1)).abandoned == ()
    clock.now = 11.0
    assert leases.expire() == {R1: ()}
