"""The small decisions under a plan: forecasts, needs, balance, pods, victims, leases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest

from twostep.autoscaler.balance import Limits, balance
from twostep.autoscaler.config import TargetsConfig
from twostep.autoscaler.demand import Traits, is_asked, learn_traits, load_between
from twostep.autoscaler.election import Watched, candidate
from twostep.autoscaler.forecast import Point, forecast
from twostep.autoscaler.kubernetes_api import Lease
from twostep.autoscaler.metrics_text import read_node, read_routers
from twostep.autoscaler.need import erlang_c, prefill_need
from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.pods import read_pods
from twostep.autoscaler.rates import Fit, Rates, StepTime, learn_rates
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, RouterCounters, Seen
from twostep.autoscaler.victims import deletion_costs
from twostep.router.metrics import Metrics
from twostep.router.workers.joint_pages import joint_metrics
from twostep.tests.autoscaler.fake_api import START, pod_json
from twostep.tests.autoscaler.scenes import RATES, ready


def points(*values: float) -> list[Point]:
    return [Point(15.0 * index, value) for index, value in enumerate(values)]


def test_what_never_changes_is_expected_to_stay() -> None:
    told = forecast(points(*[10.0] * 100), 60.0, caution=0.95)
    assert (told.level, told.enough) == (10.0, 10.0)


def test_what_grows_steadily_is_expected_to_go_on_growing() -> None:
    told = forecast(points(*(float(index) for index in range(100))), 60.0, caution=0.9)
    assert 102.0 < told.enough < 106.0


def test_for_what_comes_in_bursts_their_height_is_kept_ready_and_more_caution_keeps_more() -> None:
    bursts = points(*([0.0] * 9 + [50.0]) * 20, 0.0, 0.0)
    assert forecast(bursts, 120.0, caution=0.9).enough >= 50.0
    noisy = points(*(10.0 + (index * 7919 % 11) for index in range(200)))
    assert forecast(noisy, 60.0, caution=0.6).enough < forecast(noisy, 60.0, caution=0.95).enough <= 21.0


def test_nothing_is_expected_to_outgrow_its_highest_by_more_than_the_time_allows() -> None:
    doubling = points(*(2.0 ** (index / 10) for index in range(60)))
    assert forecast(doubling, 300.0, caution=0.9).enough == doubling[-1].value * (1 + 300 / 800)


def test_of_a_few_points_the_highest_counts() -> None:
    assert forecast(points(1.0, 9.0, 2.0), 60.0, caution=0.5).enough == 9.0
    assert forecast([], 60.0, caution=0.5).enough == 0.0


@pytest.mark.parametrize(("servers", "load", "wait"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (2, 2.0, 1.0)])
def test_the_chance_of_a_wait_is_erlangs(servers: int, load: float, wait: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(wait)


def test_a_tighter_target_needs_more_nodes() -> None:
    loose, tight = TargetsConfig(ttft_s=4.0), TargetsConfig(ttft_s=1.0)
    sizes = {1000.0: 100.0}
    assert prefill_need(8000.0, 1000.0, sizes, loose).nodes == 9
    assert prefill_need(8000.0, 1000.0, sizes, tight).nodes == 10


def test_prompts_that_no_node_computes_in_time_ask_for_no_nodes() -> None:
    alone = prefill_need(500.0, 1000.0, {512.0: 100.0}, TargetsConfig()).nodes
    beside_giants = prefill_need(500.0, 1000.0, {512.0: 100.0, 100_000.0: 0.0}, TargetsConfig()).nodes
    assert alone == beside_giants == 1


LIMITS = Limits(least=NodeCount(1, 1), most=NodeCount(20, 20), gpus=NodeCount(2, 1), max_gpus=20)


@pytest.mark.parametrize(
    ("wanted", "limits", "given"),
    [
        (NodeCount(4, 6), LIMITS, NodeCount(4, 6)),
        (NodeCount(0, 0), LIMITS, NodeCount(1, 1)),
        # 2 GPUs a prefill node: 10 and 10 would take 30 of 20.
        (NodeCount(10, 10), LIMITS, NodeCount(7, 6)),
        (NodeCount(19, 1), LIMITS, NodeCount(9, 1)),
        (NodeCount(1, 30), LIMITS, NodeCount(1, 18)),
        # Prefill can have half of what it wants: so has decode.
        (NodeCount(10, 10), replace(LIMITS, most=NodeCount(5, 20), max_gpus=None), NodeCount(5, 5)),
    ],
)
def test_two_pools_share_what_there_is(wanted: NodeCount, limits: Limits, given: NodeCount) -> None:
    assert balance(wanted, limits) == given


def test_a_pods_life_is_read_from_its_conditions() -> None:
    now = START + timedelta(seconds=500)
    pods = {
        "new": pod_json("new", ready=False),
        "ready": pod_json("ready"),
        "gone": pod_json("gone"),
        "evicted": pod_json("evicted", phase="Failed"),
    }
    pods["gone"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    pods["was"] = pod_json("was", ready=False)
    pods["was"]["status"]["containerStatuses"][0]["started"] = True
    pods["stuck"] = pod_json("stuck", ready=False)
    pods["stuck"]["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    read = {pod.name: pod for pod in read_pods(pods.values(), "metrics", now)}
    assert {name: pod.phase for name, pod in read.items()} == {
        "new": Phase.STARTING,
        "ready": Phase.READY,
        "gone": Phase.LEAVING,
        "evicted": Phase.LEAVING,
        "was": Phase.UNREADY,
        "stuck": Phase.UNSCHEDULABLE,
    }
    assert (read["ready"].age_s, read["ready"].startup_s, read["ready"].address) == (500.0, 60.0, "127.0.0.1:9090")
    assert read["new"].startup_s is None


def test_a_pod_that_was_started_anew_says_nothing_about_start_up_times() -> None:
    again = pod_json("again")
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    [pod] = read_pods([again], "metrics", datetime.now(UTC))
    assert pod.startup_s is None


def test_those_with_least_to_lose_go_and_marks_of_earlier_times_are_taken_back() -> None:
    pods = [*ready("a", "b", "c"), Pod("new", "new", Phase.STARTING)]
    pods[2] = replace(pods[2], deletion_cost=-1000)
    counters = {"a": NodeCounters(num_running=2), "b": NodeCounters(num_running=1), "c": NodeCounters(num_running=9)}
    assert list(deletion_costs(Pool(4, pods, counters), 2).items()) == [("c", 0), ("b", -1000)]
    assert deletion_costs(Pool(4, pods[:2], counters), 2) == {}


def test_a_node_that_tells_nothing_is_not_the_one_that_goes() -> None:
    assert deletion_costs(Pool(2, ready("a", "b"), {"b": NodeCounters(num_running=99)}), 1) == {"b": -1000}


@pytest.mark.parametrize(
    ("watched", "holder"),
    [
        (None, "me"),
        (Watched(Lease("", "t", "4"), 90.0), "me"),
        (Watched(Lease("me", "t", "4"), 0.0), "me"),
        (Watched(Lease("other", "t", "4"), 71.0), None),
        (Watched(Lease("other", "t", "4"), 69.0), "me"),
    ],
)
def test_a_lease_is_taken_when_it_is_ours_or_nobodys_or_its_holder_is_silent(
    watched: Watched | None, holder: str | None
) -> None:
    wanted = candidate(watched, "me", 100.0, 30.0)
    assert (wanted.holder if wanted else None) == holder


def cluster(at_s: float, router: RouterCounters, node: NodeCounters) -> Seen:
    return Seen(at_s, Pool(1, ready("p"), {"p": node}), Pool(1, ready("d"), {"d": node}), {"r": router})


def test_arrivals_are_differences_and_a_router_that_began_anew_counts_from_zero() -> None:
    before = cluster(0.0, RouterCounters(requests=100, prompt_tokens=1000), NodeCounters())
    after = cluster(10.0, RouterCounters(requests=105, prompt_tokens=1500), NodeCounters())
    load = load_between(before, after)
    assert load is not None
    assert (load.requests_per_s, load.prompt_tokens_per_s) == (0.5, 50.0)
    anew = load_between(before, cluster(10.0, RouterCounters(requests=2, prompt_tokens=20), NodeCounters()))
    assert anew is not None
    assert anew.requests == 2
    assert load_between(before, replace(after, routers={"new": RouterCounters(requests=7)})) is None
    assert not is_asked(before, before)
    assert is_asked(before, after)


def test_what_requests_are_like_is_learnt_and_fades() -> None:
    before = cluster(0.0, RouterCounters(sizes={100.0: 0.0, 200.0: 0.0}), NodeCounters())
    router = RouterCounters(answers=2, output_tokens=50, sizes={100.0: 1.0, 200.0: 3.0})
    after = cluster(10.0, router, NodeCounters(computed_tokens=30, cached_tokens=10))
    traits = learn_traits(Traits(answers=2.0, output_tokens=100.0, sizes={100.0: 4.0}), before, after, fade=0.5)
    assert (traits.uncached_share, traits.output_tokens_per_request) == (0.75, pytest.approx(100 / 3))
    assert traits.sizes == {100.0: 3.0, 200.0: 2.0}


def test_a_prefill_nodes_rate_is_what_it_computes_while_it_is_busy() -> None:
    before = cluster(0.0, RouterCounters(), NodeCounters())
    after = cluster(60.0, RouterCounters(), NodeCounters(computed_tokens=9000, step_s=3.0, steps=3))
    rates = learn_rates(Rates(), before, after, fade=0.9, soon=0.9)
    assert rates.prefill_tokens_per_s(RATES) == 3000.0
    assert Rates().prefill_tokens_per_s(RATES) == 1000.0


def test_a_step_time_is_a_line_through_what_was_measured_and_what_was_told_counts_less_and_less() -> None:
    fit = Fit()
    for batch in (1.0, 10.0, 40.0):
        fit = fit.plus(100_000.0, batch, 0.03 + 0.0005 * batch)
    line = Rates(steps=fit).step_time(RATES)
    assert line is not None
    assert (line.base_s, line.sequence_s) == (pytest.approx(0.03, rel=0.01), pytest.approx(0.0005, rel=0.02))
    assert Rates().step_time(RATES) == StepTime(pytest.approx(0.02), pytest.approx(0.001))


def test_a_routers_page_is_read() -> None:
    metrics = Metrics()
    metrics.arrived_tokens.observe(300)
    metrics.ttft.observe(0.1)
    metrics.completion_tokens.inc(7)
    metrics.requests.labels("no_ready_node").inc(2)
    metrics.requests.labels("stop").inc(9)
    metrics.waiting.set(3)
    read = read_routers(metrics.render().decode())[""]
    assert (read.requests, read.prompt_tokens, read.answers, read.output_tokens) == (1, 300, 1, 7)
    assert (read.turned_away, read.waiting, read.sizes[256.0], read.sizes[512.0]) == (2, 3, 0, 1)


def test_each_worker_on_a_page_is_a_router() -> None:
    first, second = Metrics(), Metrics()
    first.arrived_tokens.observe(300)
    second.arrived_tokens.observe(20)
    second.waiting.set(1)
    page = joint_metrics({0: first.render(), 1: second.render()})
    read = read_routers(page.decode())
    assert {worker: (one.prompt_tokens, one.sizes[16.0], one.waiting) for worker, one in read.items()} == {
        "0": (300, 0, 0),
        "1": (20, 0, 1),
    }


def test_a_page_of_something_else_is_refused() -> None:
    for read in (read_routers, read_node):
        with pytest.raises((ValueError, LookupError)):
            read("# TYPE other_total counter\nother_total 1\n")


def test_what_nodes_publish_is_what_is_read_of_them() -> None:
    from twostep.tests.autoscaler.test_loop import node_page

    metrics = node_page()
    metrics.prompt_tokens_computed.inc(500)
    metrics.step_duration.observe(0.25)
    metrics.steps.inc()
    metrics.handoff_bandwidth.observe(1e9)
    metrics.observe("reservations", "R.", "state", lambda: {"queued": 4, "attached": 3, "filling": 1})
    read = read_node(generate_latest(metrics.registry).decode())
    assert (read.computed_tokens, read.step_s, read.steps, read.handoffs, read.handoff_speed_sum) == (500, 0.25, 1, 1, 1e9)
    assert (read.num_running, read.free_blocks, read.total_blocks) == (4, 95, 100)
