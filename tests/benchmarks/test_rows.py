import pytest

from twostep.benchmarks.harness.rows import Measured, Missed, Row, Unmeasured, make_row
from twostep.benchmarks.harness.targets import Goal, Target

STEP = Target("step", "ms", Goal("ratio", 0.5, is_ceiling=True), "vLLM")
ALONE = Target("hop", "ms", Goal("ours", 2.0, is_ceiling=True), None)
ECHO = Target("reserve", "ms", Goal("excess", 2.0, is_ceiling=True), "echo")


def test_a_row_holds_medians_and_the_ratio_of_each_round() -> None:
    row = make_row(STEP, Measured(ours=(4.0, 6.0, 5.0), peer=(10.0, 10.0, 20.0), note="two threads"))
    assert row == Row("step", "ms", 5.0, 10.0, "vLLM", 0.4, (0.25, 0.6), "<= 0.5 of vLLM", True, "two threads")


def test_a_row_whose_peer_did_not_run_is_neither_met_nor_missed() -> None:
    row = make_row(STEP, Measured(ours=(4.0,)))
    assert (row.ours, row.peer, row.ratio, row.met, row.note) == (4.0, None, None, None, "vLLM did not run here")


@pytest.mark.parametrize(("ours", "met"), [(2.0, True), (2.1, False)])
def test_a_limit_of_our_own_figure_needs_no_peer(ours: float, met: bool) -> None:
    assert make_row(ALONE, Measured((ours,))).met is met


@pytest.mark.parametrize(("ours", "met"), [(2.5, True), (2.6, False)])
def test_an_excess_is_what_ours_has_over_the_peers(ours: float, met: bool) -> None:
    assert make_row(ECHO, Measured((ours,), (0.5,))).met is met


def test_an_error_is_a_miss_however_good_the_figures() -> None:
    row = make_row(ALONE, Measured((0.1,), num_failed=3))
    assert (row.met, row.note) == (False, "3 failed")


def test_a_measurement_that_broke_is_a_miss_and_one_that_never_ran_is_not() -> None:
    broken, absent = make_row(ALONE, Missed("broke: OSError")), make_row(ALONE, Unmeasured("no simulator"))
    assert (broken.ours, broken.met, broken.note) == (None, False, "broke: OSError")
    assert (absent.ours, absent.met, absent.note) == (None, None, "no simulator")


def test_a_row_without_a_goal_is_only_published() -> None:
    row = make_row(Target("digest", "GB/s", None, "memcpy"), Measured((5.0,), (20.0,)))
    assert (row.ratio, row.target, row.met) == (0.25, "published", None)
