"""How fast a node computes, from its steps."""

import pytest

from twostep.core.pace import BandwidthMeter, PrefillCurve, PrefillMeter, RatePoint, StepMeter, StepPace


def test_a_curve_adds_up_its_pieces() -> None:
    curve = PrefillCurve((RatePoint(0, 0.001), RatePoint(1024, 0.002), RatePoint(4096, 0.004)))
    assert curve.prefill_s(0, 1024) == pytest.approx(1.024)
    assert curve.prefill_s(1000, 1100) == pytest.approx(0.024 + 0.152)
    assert curve.prefill_s(0, 8192) == pytest.approx(1.024 + 6.144 + 16.384)
    assert curve.prefill_s(5000, 5000) == 0.0


@pytest.mark.parametrize("points", [(), (RatePoint(1, 0.1),), (RatePoint(0, 0.1), RatePoint(0, 0.2))])
def test_a_curve_that_begins_nowhere_or_goes_back_is_refused(points: tuple[RatePoint, ...]) -> None:
    with pytest.raises(ValueError, match="ascending order, the first at 0"):
        PrefillCurve(points)


def test_what_was_measured_becomes_the_curve() -> None:
    meter = PrefillMeter()
    assert meter.points == ()
    meter.record(1024, 3072, 4.096)
    assert meter.points == (RatePoint(0, 0.002), RatePoint(2048, 0.002))
    meter.record(0, 512, 0.512)
    assert meter.points == (RatePoint(0, 0.001), RatePoint(1024, 0.002), RatePoint(2048, 0.002))


def test_later_tokens_count_more() -> None:
    meter = PrefillMeter()
    meter.record(0, 1000, 10.0)
    for _ in range(200):
        meter.record(0, 1000, 1.0)
    assert meter.points[0].token_s == pytest.approx(0.001, rel=0.1)


def test_a_step_is_a_line_through_its_numbers_of_sequences() -> None:
    meter = StepMeter()
    assert meter.pace is None
    for num_sequences in (1, 4, 9, 2):
        meter.record(num_sequences, 0.01 + 0.002 * num_sequences)
    pace = meter.pace
    assert pace is not None
    assert (pace.base_s, pace.sequence_s) == (pytest.approx(0.01), pytest.approx(0.002))
    assert pace.step_s(10) == pytest.approx(0.03)


def test_one_size_of_step_says_nothing_about_others() -> None:
    meter = StepMeter()
    for _ in range(3):
        meter.record(8, 0.02)
    assert meter.pace == StepPace(pytest.approx(0.02), 0.0)


def test_a_line_never_falls_nor_begins_below_nothing() -> None:
    falling, steep = StepMeter(), StepMeter()
    for num_sequences in (1, 2, 3):
        falling.record(num_sequences, 0.1 - 0.01 * num_sequences)
        steep.record(num_sequences, 0.01 * num_sequences**2)
    assert falling.pace == StepPace(pytest.approx(0.08, rel=0.01), 0.0)
    assert steep.pace is not None
    assert steep.pace.base_s >= 0.0


def test_bandwidth_is_that_of_the_bytes_not_of_the_transfers() -> None:
    meter = BandwidthMeter()
    assert meter.bytes_per_s == 0.0
    meter.record(10**9, 1.0)
    meter.record(0, 5.0)
    meter.record(10, 1.0)
    assert meter.bytes_per_s == pytest.approx(0.9 * 10**9 / 1.9, rel=0.01)
