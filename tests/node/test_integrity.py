"""When a node recomputes its accounts, and what becomes of one whose accounts do not add up."""

import logging

import pytest

from twostep.core.ids import RequestId
from twostep.node.integrity import Integrity, audit_owners
from twostep.node.metrics import NodeMetrics
from twostep.node.readiness import Readiness


class StillFeed:
    """An engine that never stands still."""

    def stalled_s(self) -> float:
        return 0.0


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.is_idle = True
        self.differences: list[str] = []
        self.num_audits = 0
        self.metrics = NodeMetrics()
        self.readiness = Readiness(StillFeed(), stall_s=1.0)  # type: ignore[arg-type]
        audits = (self.audit, lambda: ())
        self.integrity = Integrity(audits, lambda: self.is_idle, self.readiness, self.metrics, lambda: self.now, pause_s=10.0)

    def audit(self) -> list[str]:
        self.num_audits += 1
        return self.differences

    def value(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"twostep_{name}_total") or 0.0


def test_an_idle_node_audits_itself_now_and_then() -> None:
    rig = Rig()
    for rig.now in (0.0, 9.9, 10.0, 19.9, 20.0):
        rig.integrity.watch()
    assert rig.num_audits == rig.value("integrity_checks") == 2
    assert rig.readiness.reason == ""


def test_a_busy_node_does_not_and_makes_up_for_it() -> None:
    rig = Rig()
    rig.now, rig.is_idle = 50.0, False
    rig.integrity.watch()
    assert rig.num_audits == 0
    rig.is_idle = True
    rig.integrity.watch()
    assert rig.num_audits == 1


def test_what_does_not_add_up_is_logged_counted_and_ends_readiness(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.differences = ["block 3 is lost", "block 4 too"]
    with caplog.at_level(logging.ERROR):
        assert rig.integrity.check() == ("block 3 is lost", "block 4 too")
    assert [vars(record)["difference"] for record in caplog.records] == ["block 3 is lost", "block 4 too"]
    assert rig.value("integrity_violations") == 2
    assert rig.readiness.reason == "the accounts do not add up: block 3 is lost"
    rig.differences = []
    rig.integrity.check()
    assert rig.readiness.reason != ""


def test_a_request_that_nobody_answers_for_is_named() -> None:
    known = frozenset(map(RequestId, "abc"))
    assert audit_owners(lambda: known, lambda: frozenset({RequestId("b")})) == (
        "the engine knows a, which nobody here answers for",
        "the engine knows c, which nobody here answers for",
    )
