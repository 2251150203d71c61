"""How full a node counts, and how many nodes follow from that."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from twostep.autoscaler.seen import NodeCounters
from twostep.deploy.ray.config import TargetsConfig
from twostep.deploy.ray.load import load_of
from twostep.deploy.ray.scaling import LOAD, replicas_for_load

TARGETS = TargetsConfig(prefill_busy=0.5, prefill_queued_tokens=1000, decode_kv=0.8, decode_requests=10)
NOTHING = NodeCounters(total_blocks=100, free_blocks=100)


@dataclass(frozen=True, slots=True)
class FakePool:
    target_num_replicas: int
    aggregated_metrics: Mapping[str, Mapping[str, float]] | None


@pytest.mark.parametrize(
    ("now", "load"),
    [
        (NodeCounters(step_s=12.0), 0.4),
        (NodeCounters(step_s=20.0, queued_tokens=100), 2.0),
        (NodeCounters(step_s=10.0, queued_tokens=3000), 3.0),
        (NodeCounters(step_s=5.0), 1.0),
    ],
    ids=["busy a fifth of the time", "busy all the time", "prompts wait", "started anew"],
)
def test_a_prefill_node_is_full_of_work_or_of_what_waits_for_it(now: NodeCounters, load: float) -> None:
    assert load_of("prefill", NodeCounters(step_s=10.0), now, 10.0, TARGETS) == pytest.approx(load)


@pytest.mark.parametrize(
    ("now", "load"),
    [
        (NodeCounters(total_blocks=100, free_blocks=60, num_running=2), 0.5),
        (NodeCounters(total_blocks=100, free_blocks=90, num_running=4, num_waiting=11), 1.5),
    ],
    ids=["memory", "requests"],
)
def test_a_decode_node_is_full_of_memory_that_is_given_out_or_of_requests(now: NodeCounters, load: float) -> None:
    assert load_of("decode", NOTHING, now, 10.0, TARGETS) == pytest.approx(load)


def test_a_pool_gets_as_many_nodes_as_its_load_would_fill() -> None:
    assert replicas_for_load(FakePool(2, {LOAD: {"a": 1.5, "b": 1.25}})) == (2.75, {})
    assert replicas_for_load(FakePool(2, {LOAD: {"a": 0.25, "b": 0.25}})) == (0.5, {})


@pytest.mark.parametrize("told", [None, {}, {LOAD: {}}, {"running_requests": {"a": 3.0}}])
def test_a_pool_of_which_nobody_has_told_stays_as_it_is(told: Mapping[str, Mapping[str, float]] | None) -> None:
    assert replicas_for_load(FakePool(3, told)) == (3, {})
