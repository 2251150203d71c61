"""When a node that fails rests, when it is tried again, and what does not count against it."""

import pytest

from twostep.core.errors import (
    Cancelled,
    ChecksumMismatch,
    DeadlineExceeded,
    EngineFault,
    InvalidRequest,
    NodeDraining,
    NodeUnavailable,
    PromptTooLong,
    QueueFull,
    RequestFault,
    ServingError,
)
from twostep.router.nodes.health import FAILURES_IN_A_ROW, NodeHealth
from twostep.tests.handoff.clock import ManualClock

SICK = NodeUnavailable("it gave up the request")


def health(clock: ManualClock) -> NodeHealth:
    return NodeHealth(clock)


def fail(node: NodeHealth, times: int = FAILURES_IN_A_ROW) -> None:
    for _ in range(times):
        node.note(SICK)


def test_a_node_rests_when_it_has_failed_several_times_in_a_row() -> None:
    node = health(ManualClock())
    fail(node, FAILURES_IN_A_ROW - 1)
    assert node.trouble == ""
    node.note(SICK)
    assert node.trouble == "5 failures in a row"


def test_one_success_forgives_earlier_failures() -> None:
    node = health(ManualClock())
    fail(node, FAILURES_IN_A_ROW - 1)
    node.note(None)
    fail(node, FAILURES_IN_A_ROW - 1)
    assert node.trouble == ""


def test_after_a_rest_one_request_tries_the_node_and_its_success_heals_it() -> None:
    clock = ManualClock()
    node = health(clock)
    fail(node)
    clock.advance(1.0)
    assert node.trouble == ""
    node.begin()
    assert node.trouble == "one request tries it again"
    node.note(None)
    assert node.trouble == ""


def test_each_failed_trial_doubles_the_rest_up_to_a_limit() -> None:
    clock = ManualClock()
    node = health(clock)
    fail(node)
    rests = []
    for _ in range(7):
        rest = 0.0
        while node.trouble:
            clock.advance(0.5)
            rest += 0.5
        rests.append(rest)
        node.begin()
        node.note(SICK)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_trial_that_never_ends_gives_way_to_another() -> None:
    clock = ManualClock()
    node = health(clock)
    fail(node)
    clock.advance(1.0)
    node.begin()
    clock.advance(10.0)
    assert node.trouble == ""


@pytest.mark.parametrize(
    "error",
    [
        kind("x")
        for kind in (
            InvalidRequest,
            PromptTooLong,
            QueueFull,
            NodeDraining,
            DeadlineExceeded,
            Cancelled,
            RequestFault,
            ChecksumMismatch,
        )
    ],
)
def test_twenty_errors_that_are_not_the_nodes_fault_change_nothing(error: ServingError) -> None:
    node = health(ManualClock())
    for _ in range(20):
        node.note(error)
    assert node.trouble == ""


def test_an_engine_that_faults_counts() -> None:
    node = health(ManualClock())
    for _ in range(FAILURES_IN_A_ROW):
        node.note(EngineFault("x"))
    assert node.trouble
