"""The pace at which what is lent comes back."""

import pytest

from twostep.core.turnover import DECAY, HoldMeter, Supply


@pytest.mark.parametrize(
    ("supply", "wanted", "wait_s"),
    [
        (Supply(free=5, held=10, mean_hold_s=2.0), 5, 0.0),
        (Supply(free=5, held=10, mean_hold_s=2.0), 10, 1.0),
        (Supply(free=0, held=10, mean_hold_s=2.0), 10, 2.0),
        (Supply(free=0, held=10, mean_hold_s=2.0), 30, 6.0),
        (Supply(free=5, held=10, mean_hold_s=None), 5, 0.0),
        (Supply(free=5, held=10, mean_hold_s=None), 6, None),
        (Supply(free=5, held=0, mean_hold_s=2.0), 6, None),
    ],
)
def test_the_wait_follows_from_what_is_held_and_for_how_long(supply: Supply, wanted: float, wait_s: float | None) -> None:
    assert supply.wait_s(wanted) == wait_s


def test_nothing_is_known_before_something_has_come_back() -> None:
    assert HoldMeter().mean_s is None


def test_the_mean_counts_units_and_the_latest_most() -> None:
    meter = HoldMeter()
    meter.record(1, held_s=10.0)
    assert meter.mean_s == 10.0
    meter.record(3, held_s=2.0)
    assert meter.mean_s == pytest.approx((DECAY * 10 + 3 * 2) / (DECAY + 3))
