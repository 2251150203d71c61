"""What becomes of workers: events in, orders out."""

import signal

from twostep.router.workers.restart_policy import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    MAX_FAILED_STARTS,
    STEADY_S,
    Due,
    Ended,
    Leave,
    Listening,
    RestartPolicy,
    Start,
    StartLater,
    Stop,
    StopAsked,
    Tell,
)

KILLED = -signal.SIGKILL


def serving(num_workers: int = 2) -> RestartPolicy:
    policy = RestartPolicy(num_workers)
    policy.begin()
    for number in range(num_workers):
        policy.on(Listening(number))
    return policy


def test_the_first_worker_proves_the_configuration_before_the_others_start() -> None:
    policy = RestartPolicy(3)
    assert policy.begin() == [Start(0, 1)]
    assert policy.on(Listening(0)) == [Start(1, 1), Start(2, 1)]
    assert policy.on(Listening(2)) == []
    assert policy.on(Listening(1)) == [Tell()]


def test_a_first_worker_that_cannot_start_ends_the_program_with_its_code() -> None:
    for code, told in ((2, 2), (1, 1), (KILLED, 1)):
        policy = RestartPolicy(2)
        policy.begin()
        assert policy.on(Ended(0, code, None)) == [Leave(told)]


def test_a_worker_that_has_served_for_long_is_started_again_at_once() -> None:
    policy = serving()
    assert policy.on(Ended(1, KILLED, STEADY_S)) == [StartLater(1, 0.0)]
    assert policy.on(Due(1)) == [Start(1, 2)]
    assert policy.on(Listening(1)) == []


def test_a_worker_that_dies_early_waits_twice_as_long_each_time_within_a_bound() -> None:
    policy, delays = serving(), []
    for _ in range(9):
        [later] = policy.on(Ended(0, KILLED, 0.1))
        assert isinstance(later, StartLater)
        delays.append(later.delay_s)
        policy.on(Due(0))
        policy.on(Listening(0))
    assert delays == [min(MAX_DELAY_S, FIRST_DELAY_S * 2**times) for times in range(9)]
    assert policy.on(Ended(0, KILLED, STEADY_S)) == [StartLater(0, 0.0)]


def test_a_worker_that_dies_as_another_starts_for_the_first_time_does_not_hold_up_what_is_told() -> None:
    policy = RestartPolicy(2)
    policy.begin()
    policy.on(Listening(0))
    assert policy.on(Ended(0, KILLED, 1.0)) == [StartLater(0, FIRST_DELAY_S)]
    assert policy.on(Listening(1)) == []
    assert policy.on(Due(0)) == [Start(0, 2)]
    assert policy.on(Listening(0)) == [Tell()]


def test_starts_that_fail_again_and_again_stop_the_others_and_end_the_program() -> None:
    policy = serving(3)
    policy.on(Ended(1, KILLED, STEADY_S))
    for _ in range(MAX_FAILED_STARTS - 1):
        policy.on(Due(1))
        assert isinstance(policy.on(Ended(1, 2, None))[0], StartLater)
    policy.on(Due(1))
    assert policy.on(Ended(1, 2, None)) == [Stop(0), Stop(2)]
    assert policy.on(Ended(0, 0, 60.0)) == []
    assert policy.on(Ended(2, 0, 60.0)) == [Leave(2)]


def test_failed_starts_are_forgiven_when_a_worker_comes_to_serve() -> None:
    policy = serving()
    for _ in range(3 * MAX_FAILED_STARTS):
        policy.on(Ended(1, 1, None))
        policy.on(Due(1))
        policy.on(Listening(1))
        assert isinstance(policy.on(Ended(1, 1, 1.0))[0], StartLater)
        policy.on(Due(1))


def test_to_stop_is_to_let_every_worker_end() -> None:
    policy = serving(3)
    assert policy.on(StopAsked()) == [Stop(0), Stop(1), Stop(2)]
    assert policy.on(StopAsked()) == []
    assert [policy.on(Ended(number, 0, 60.0)) for number in (1, 0, 2)] == [[], [], [Leave(0)]]


def test_a_worker_that_waits_for_its_start_is_not_started_any_more() -> None:
    policy = serving()
    policy.on(Ended(1, KILLED, 1.0))
    assert policy.on(StopAsked()) == [Stop(0)]
    assert policy.on(Due(1)) == []
    assert policy.on(Ended(0, 0, 60.0)) == [Leave(0)]


def test_a_worker_that_is_told_to_stop_while_it_starts_may_die_of_it() -> None:
    policy = RestartPolicy(2)
    policy.begin()
    assert policy.on(StopAsked()) == [Stop(0)]
    assert policy.on(Ended(0, -signal.SIGTERM, None)) == [Leave(0)]


def test_a_worker_that_comes_to_serve_after_it_was_told_to_stop_changes_nothing() -> None:
    policy = RestartPolicy(2)
    policy.begin()
    policy.on(StopAsked())
    assert policy.on(Listening(0)) == []
    assert policy.on(Ended(0, 0, 1.0)) == [Leave(0)]


def test_a_worker_that_dies_while_it_drains_is_told_by_the_code() -> None:
    policy = serving()
    policy.on(StopAsked())
    assert policy.on(Ended(0, KILLED, 60.0)) == []
    assert policy.on(Ended(1, 0, 60.0)) == [Leave(1)]
