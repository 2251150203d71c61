"""One request too many is refused before any work."""

import pytest

from twostep.core.errors import NoReadyNode, QueueFull
from twostep.router.admission.in_flight import Admission
from twostep.router.metrics import Metrics


def test_a_request_over_the_bound_is_refused_until_one_ends() -> None:
    admission = Admission(1, Metrics())
    with (
        admission.admit(),
        pytest.raises(QueueFull, match="at most 1 requests are served at once, found 1") as raised,
        admission.admit(),
    ):
        pass
    assert (raised.value.http_status, raised.value.retry_after_s) == (429, 1.0)
    with admission.admit():
        pass


def test_a_place_is_given_back_when_the_request_fails() -> None:
    admission = Admission(1, Metrics())
    with pytest.raises(ValueError, match="x"), admission.admit():
        raise ValueError("x")
    with admission.admit():
        pass


def test_a_router_that_drains_takes_nothing_new() -> None:
    admission = Admission(1, Metrics())
    admission.is_closed = True
    with pytest.raises(NoReadyNode, match="this router is stopping"), admission.admit():
        pass
