"""The autoscaler's rows are those that were promised, and its rivals do what is said of them."""

from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.simulation.fleet import Fleet, NodeModel
from twostep.autoscaler.simulation.trace import TraceRequest
from twostep.benchmarks.autoscaler_rows.bursty_day import bursty_day, share_at
from twostep.benchmarks.autoscaler_rows.clairvoyant import best, timetable
from twostep.benchmarks.autoscaler_rows.hpa import Hpa
from twostep.benchmarks.autoscaler_rows.policies import measurements
from twostep.benchmarks.harness.rounds import QUICK
from twostep.benchmarks.harness.rows import Unmeasured
from twostep.benchmarks.harness.targets import read_targets

MODEL = NodeModel(1000.0, StepTime(0.01, 0.001), kv_tokens=100_000)
STEADY = [TraceRequest(0.25 * index, 500, 20) for index in range(2400)]


def test_every_promised_row_is_measured_and_no_other() -> None:
    rows = [row for one in measurements(None) for row in one.rows]
    assert rows == [target.name for target in read_targets("autoscaler")]


async def test_without_a_trace_nothing_is_measured_and_it_says_so() -> None:
    outcomes = await measurements(None)[0].measure(QUICK)
    assert {type(outcome) for outcome in outcomes.values()} == {Unmeasured}


def test_a_timetable_starts_nodes_in_time_and_keeps_those_that_are_soon_needed_again() -> None:
    load = [0.5, 0.5, 2.5, 0.5, 0.5, 2.5, 0.5, 0.5, 0.5, 0.5, 1.5]
    assert timetable(load, 1.0, startup_s=0.0) == [1, 1, 3, 1, 1, 3, 1, 1, 1, 1, 2]
    assert timetable(load, 1.0, startup_s=30.0) == [3, 3, 3, 3, 3, 3, 1, 1, 2, 2, 2]


def test_who_knows_everything_keeps_the_target_with_hardly_more_than_is_busy() -> None:
    told = best(STEADY, MODEL, 30.0, ttft_s=2.0, tpot_s=0.1, attainment=0.97, from_s=60.0)
    assert told.attainment >= 0.97
    # Two prefill nodes are busy all the time, and one decode node is enough.
    assert told.node_s / told.duration_s <= 4.1


def test_an_hpa_adds_nodes_for_those_who_wait_and_takes_them_back_after_ten_minutes() -> None:
    hpa, fleet = Hpa(), Fleet(STEADY, MODEL, 0.0, NodeCount(1, 1))
    fleet.run(hpa, 2.0, 0.1)
    prefill = [nodes.prefill for _, nodes in fleet.moments]
    assert prefill[0] == 1
    assert max(prefill) > 2
    assert prefill == sorted(prefill)


def test_a_day_has_the_traces_requests_thinned_by_the_hour_and_is_always_the_same() -> None:
    hour = [TraceRequest(2.0 * index, 100 + index, 10) for index in range(1800)]
    day = bursty_day(hour, 24)
    assert day == bursty_day(hour, 24)
    counts = [sum(3600.0 * at <= one.at_s < 3600.0 * (at + 1) for one in day) for at in range(24)]
    assert {one.prompt_tokens for one in day} <= {one.prompt_tokens for one in hour}
    assert 0.2 < min(counts) / 1800 < 0.4
    assert 0.9 < max(counts) / 1800 < 2.0
    assert share_at(10 * 3600.0) == 1.0
