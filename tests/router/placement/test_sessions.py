"""Where sessions were served last."""

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.router.placement.sessions import Sessions

HERE = frozenset({NodeRef(NodeId("p"), Incarnation(1))})


def test_a_session_is_remembered_for_its_own_tenant() -> None:
    sessions = Sessions()
    sessions.note("acme", "s", HERE)
    assert sessions.nodes("acme", "s") == HERE
    assert sessions.nodes("other", "s") == frozenset()


def test_requests_without_a_session_leave_nothing_behind() -> None:
    sessions = Sessions()
    sessions.note("acme", "", HERE)
    assert sessions.nodes("acme", "") == frozenset()


def test_the_session_that_was_seen_longest_ago_is_forgotten_first() -> None:
    sessions = Sessions(capacity=2)
    for name in ("a", "b", "a", "c"):
        sessions.note("", name, HERE)
    assert [bool(sessions.nodes("", name)) for name in "abc"] == [True, False, True]
