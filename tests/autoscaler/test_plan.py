"""Tables of plans: what is seen, how many nodes there are to be, and why."""

from dataclasses import replace

import pytest

from twostep.autoscaler.past import Ceiling, NodeCount, Past, learn
from twostep.autoscaler.plan import Plan, make_plan, remember
from twostep.autoscaler.rates import Rates
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, RouterCounters, Seen
from twostep.tests.autoscaler.scenes import NOW, changed_at, config, pool, ready, seen, steady


def targets(plan: Plan) -> tuple[int, int]:
    return plan.prefill.target, plan.decode.target


@pytest.mark.parametrize(
    ("tokens_per_s", "requests_per_s", "needs"),
    [
        # A node computes 1000 tokens/s; a decode node holds 30 sequences within 50 ms, 600 tokens/s.
        (500.0, 1.0, (1, 1)),
        (3000.0, 6.0, (4, 2)),
        (6000.0, 12.0, (7, 3)),
        (500.0, 30.0, (1, 6)),
    ],
)
def test_prefill_needs_nodes_for_its_tokens_and_decode_for_its_sequences(
    tokens_per_s: float, requests_per_s: float, needs: tuple[int, int]
) -> None:
    plan = make_plan(steady(tokens_per_s, requests_per_s), seen(1, 1), config())
    assert (plan.prefill.need, plan.decode.need) == needs


def test_what_is_found_in_prefix_caches_needs_no_nodes() -> None:
    past = steady(6000.0, 12.0)
    past = replace(past, traits=replace(past.traits, computed_tokens=50.0, cached_tokens=50.0))
    assert make_plan(past, seen(1, 1), config()).prefill.need == 4


def test_tokens_that_wait_need_more_nodes_than_their_arrival_does() -> None:
    busy = pool("p", 4, queued_tokens=50_000.0)
    plan = make_plan(steady(3000.0, 6.0), seen(busy, 2), config())
    assert plan.prefill.need == 7
    assert "200000 tokens wait" in plan.prefill.why[0]


def test_reservations_that_wait_need_more_decode_nodes() -> None:
    calm = make_plan(steady(500.0, 30.0), seen(1, 6), config())
    crowded = make_plan(steady(500.0, 30.0), seen(1, pool("d", 6, num_waiting=100.0)), config())
    assert (calm.decode.need, crowded.decode.need) == (6, 8)


def test_decode_is_scaled_by_kv_where_memory_is_scarcer_than_time() -> None:
    past = steady(500.0, 2.0)
    past = replace(past, rates=Rates(blocks_per_node=1000.0, held_block_s=200_000.0, answers=100.0))
    plan = make_plan(past, seen(1, 1), config())
    assert plan.decode.need == 5
    assert plan.decode.why[0] == "4000 KV blocks taken or waited for, 1000 on a node"


def test_the_paths_between_the_pools_bound_prefill_to_decode() -> None:
    """1 MB a token; a path carries 500 MB/s: half of what a prefill node computes, and what a decode node can take in."""
    past = steady(3000.0, 6.0)
    crossed = Rates(moved_bytes=1e9, moved_tokens=1e3, handoffs=10.0, speed_sum=5e9, blocks_per_node=1000.0)
    plan = make_plan(replace(past, rates=crossed), seen(4, 2), config())
    assert (plan.prefill.need, plan.decode.need) == (8, 6)
    assert "the path to decode nodes carries 500 of the 1000 tokens/s" in plan.prefill.why[0]
    assert plan.decode.why[0] == "3000 MB/s of KV, 500 a node"


def test_a_step_up_is_bounded_and_says_where_it_leads() -> None:
    plan = make_plan(steady(12_000.0, 24.0), seen(3, 5), config())
    assert (plan.prefill.need, plan.prefill.target) == (13, 6)
    assert "a step at a time, 13 in the end" in plan.prefill.why


def test_fewer_nodes_come_only_after_they_have_been_enough_for_a_while_and_a_step_at_a_time() -> None:
    past = steady(3000.0, 6.0)
    recent = replace(past, needs=[(NOW - 60, NodeCount(8, 2)), (NOW - 30, NodeCount(4, 2))])
    over = replace(past, needs=[(NOW - 130, NodeCount(8, 2)), (NOW - 30, NodeCount(4, 2))])
    assert make_plan(recent, seen(8, 2), config()).prefill.target == 8
    assert make_plan(over, seen(8, 2), config()).prefill.target == 6
    assert "8 were needed within the last 120 s" in make_plan(recent, seen(8, 2), config()).prefill.why


def test_a_node_that_takes_long_to_start_is_held_for_as_long() -> None:
    past = replace(steady(3000.0, 6.0), needs=[(NOW - 250, NodeCount(8, 2))], startups={"prefill": {"p0": 300.0}})
    assert make_plan(past, seen(8, 2), config()).prefill.target == 8


@pytest.mark.parametrize(("replicas", "held_s"), [(4, 120.0), (3, 160.0), (2, 240.0)])
def test_a_node_that_is_much_of_its_pool_is_held_longer_in_proportion(replicas: int, held_s: float) -> None:
    def decode_after(passed_s: float) -> int:
        past = replace(steady(500.0, 1.0), needs=[(NOW - passed_s, NodeCount(1, replicas))])
        return make_plan(past, seen(1, replicas), config()).decode.target

    assert (decode_after(held_s - 1), decode_after(held_s)) == (replicas, replicas - 1)


def test_a_need_is_remembered_for_as_long_as_the_smallest_pool_is_held() -> None:
    past = replace(steady(500.0, 1.0), needs=[(NOW - 239.0, NodeCount(2, 2))])
    assert (NOW - 239.0, NodeCount(2, 2)) in remember(past, make_plan(past, seen(2, 2), config()), config()).needs


def test_nothing_shrinks_before_arrivals_have_been_seen_for_a_while() -> None:
    assert targets(make_plan(steady(500.0, 1.0, minutes=4), seen(8, 8), config())) == (8, 8)
    assert targets(make_plan(steady(500.0, 1.0, minutes=6), seen(8, 8), config())) == (6, 6)


def test_gpus_are_shared_so_that_both_pools_have_the_same_share_of_what_they_need() -> None:
    past = steady(12_000.0, 24.0)
    needs = make_plan(past, seen(1, 1), config())
    assert (needs.prefill.need, needs.decode.need) == (13, 5)
    plan = make_plan(past, seen(5, 3), config(max_gpus=10))
    assert targets(plan) == (7, 3)
    assert any("13 are wanted, 7 can be had: max_gpus" in why for why in plan.prefill.why)


def test_a_pool_at_its_bound_keeps_the_other_from_what_it_could_not_use() -> None:
    plan = make_plan(steady(12_000.0, 24.0), seen(4, 4), config(prefill={"max_nodes": 5}))
    assert targets(plan) == (5, 3)


def test_a_pod_that_no_machine_has_room_for_is_cancelled_and_not_asked_for_again_for_a_while() -> None:
    stuck = Pod("p9", "p9", Phase.UNSCHEDULABLE, age_s=61.0)
    cluster = seen(pool("p", 3, more=[stuck]), 2)
    past = steady(6000.0, 12.0, last=cluster)
    plan = make_plan(past, cluster, config())
    assert plan.prefill.target == 3
    assert "no machine has had room for 1 of them for 60 s: cancelled" in plan.prefill.why
    after = remember(past, plan, config())
    assert after.ceilings == {"prefill": Ceiling(3, NOW + 300.0)}
    again = make_plan(after, seen(3, 2), config())
    assert again.prefill.target == 3
    assert any("no machine had room for more" in why for why in again.prefill.why)


def test_a_pod_that_waits_for_a_machine_but_not_yet_for_long_is_waited_for() -> None:
    fresh = Pod("p9", "p9", Phase.UNSCHEDULABLE, age_s=59.0)
    assert make_plan(steady(3000.0, 6.0), seen(pool("p", 3, more=[fresh]), 2), config()).prefill.target == 4


def test_the_changes_of_an_hour_are_bounded_and_the_last_of_them_are_kept_for_growing() -> None:
    past = changed_at(steady(3000.0, 6.0), *(NOW - 100.0 - n for n in range(45)))
    plan = make_plan(past, seen(2, 8), config())
    assert targets(plan) == (4, 8)
    assert plan.decode.why[-1] == "6 in the end: 45 of 60 changes of this hour are made"
    full = changed_at(past, *(NOW - 100.0 - n for n in range(60)))
    assert targets(make_plan(full, seen(2, 8), config())) == (2, 8)


def test_nothing_shrinks_while_a_ready_node_tells_nothing_but_what_must_grow_grows() -> None:
    plan = make_plan(steady(3000.0, 6.0), seen(pool("p", 8, silent=1), pool("d", 1, silent=1)), config())
    assert targets(plan) == (8, 2)
    assert plan.prefill.why[-1] == "not fewer while p7 does not tell its metrics (1 silent)"


def test_without_a_router_nothing_is_known_and_nothing_changes() -> None:
    blind = replace(seen(8, 8), routers={}, silent_routers=["r-1", "r-2"])
    plan = make_plan(steady(500.0, 1.0), blind, config())
    assert (targets(plan), plan.hold) == ((8, 8), "no router tells its metrics: r-1, r-2")


def test_before_anything_is_known_of_nodes_only_bounds_are_kept() -> None:
    settings = config(rates={}, decode={"min_nodes": 3})
    past = replace(steady(6000.0, 12.0), rates=Rates())
    plan = make_plan(past, seen(2, 2), settings)
    assert targets(plan) == (2, 3)
    assert "`rates` could tell" in plan.prefill.why[0]


SLEEPY = {"min_nodes": 0}


def test_both_pools_sleep_together_when_nobody_has_asked_for_long_enough() -> None:
    settings = config(prefill=SLEEPY, decode=SLEEPY)
    past = replace(steady(0.0, 0.0), asked_at_s=NOW - 600.0)
    assert targets(make_plan(past, seen(1, 2), settings)) == (0, 0)
    assert targets(make_plan(replace(past, asked_at_s=NOW - 599.0), seen(1, 2), settings)) != (0, 0)
    busy = seen(1, pool("d", 2, num_running=1.0))
    assert targets(make_plan(past, busy, settings)) != (0, 0)
    assert targets(make_plan(past, seen(1, 2), config())) == (1, 1)


def test_whoever_waits_at_a_router_wakes_both_pools() -> None:
    settings = config(prefill=SLEEPY, decode=SLEEPY)
    asleep = seen(0, 0, at_s=NOW - 15.0, requests=5.0)
    past = learn(steady(0.0, 0.0, last=None), asleep)
    still = seen(0, 0, requests=5.0)
    assert targets(make_plan(learn(past, still), still, settings)) == (0, 0)
    for asked in ({"waiting": 1.0}, {"turned_away": 1.0}):
        woken = seen(0, 0, requests=5.0, **asked)
        plan = make_plan(learn(past, woken), woken, settings)
        assert targets(plan) == (1, 1)
        assert plan.decode.why == ("woken: requests wait for nodes",)


def test_an_autoscaler_that_has_just_started_wakes_nobody_unless_somebody_waits() -> None:
    settings = config(prefill=SLEEPY, decode=SLEEPY)
    for waiting, nodes in ((0.0, (0, 0)), (2.0, (1, 1))):
        first = seen(0, 0, requests=99.0, waiting=waiting)
        assert targets(make_plan(learn(Past(), first), first, settings)) == nodes


def test_what_was_not_carried_out_is_not_counted_as_a_change() -> None:
    past = steady(3000.0, 6.0)
    plan = make_plan(past, seen(2, 2), config())
    assert list(remember(past, plan, config()).changes) == [NOW]
    still = plan.with_pool("prefill", replace(plan.prefill, target=2))
    assert list(remember(past, still, config()).changes) == []


def test_start_up_times_are_those_of_the_pods_themselves() -> None:
    pods = [replace(pod, startup_s=took) for pod, took in zip(ready("a", "b", "c"), (40.0, 50.0, 300.0), strict=True)]
    now = Seen(NOW, Pool(3, pods, {"a": NodeCounters()}), Pool(0), {"r": RouterCounters()})
    past = learn(Past(), now)
    assert past.startup_s("prefill", config().rates) == 50.0
    assert past.startup_s("decode", config().rates) == 60.0
