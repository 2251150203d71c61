"""One request too many is refused before any work."""

import pytest

from twostep.core.errors import NoReadyNode, QueueFull, TooLarge
from twostep.router.admission.in_flight import Admission
from twostep.router.metrics import Metrics
from twostep.tests.handoff.clock import ManualClock


def test_a_request_over_the_bound_is_refused_until_one_ends() -> None:
    admission = Admission(1, Metrics(), ManualClock())
    with (
        admission.admit(),
        pytest.raises(QueueFull, match="at most 1 requests are served at once, found 1") as raised,
        admission.admit(),
    ):
        pass
    assert (raised.value.http_status, raised.value.retry_after_s) == (429, 1.0)
    with admission.admit():
        pass


def test_those_who_are_refused_are_told_different_times_at_which_places_have_come_back() -> None:
    clock = ManualClock()
    admission = Admission(2, Metrics(), clock)
    with admission.admit():
        clock.advance(10.0)
    told: list[float | None] = []
    with admission.admit(), admission.admit():
        for _ in range(3):
            with pytest.raises(QueueFull) as refused, admission.admit():
                pass
            told.append(refused.value.retry_after_s)
        clock.advance(6.0)
        with pytest.raises(QueueFull) as again, admission.admit():
            pass
    assert told == [5.0, 10.0, 15.0]
    assert again.value.retry_after_s == 15.0, "who was told 5 s has had his time, two others are still expected"


def test_a_request_that_needs_more_places_than_there_are_is_not_told_to_come_again() -> None:
    admission = Admission(2, Metrics(), ManualClock())
    with pytest.raises(TooLarge, match="at most 2 requests are served at once, found 3 in one"), admission.admit(3):
        pass
    with admission.admit(2):
        pass


def test_a_place_is_given_back_when_the_request_fails() -> None:
    admission = Admission(1, Metrics(), ManualClock())
    with pytest.raises(ValueError, match="x"), admission.admit():
        raise ValueError("x")
    with admission.admit():
        pass


def test_a_router_that_drains_takes_nothing_new() -> None:
    admission = Admission(1, Metrics(), ManualClock())
    admission.is_closed = True
    with pytest.raises(NoReadyNode, match="this router is stopping"), admission.admit():
        pass
