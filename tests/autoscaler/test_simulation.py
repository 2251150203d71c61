"""The simulated fleet counts what it should, and the plan keeps its promises on it; traces are read, or refused by name."""

import math
from pathlib import Path
from random import Random

import pytest

from twostep.autoscaler.config import AutoscalerConfig, PoolConfig, RatesConfig, RoutersConfig, TargetsConfig
from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.simulation.fleet import Fleet, NodeModel
from twostep.autoscaler.simulation.policies import Fixed, Ours
from twostep.autoscaler.simulation.sizing import nodes_that_do_both, separate_pools
from twostep.autoscaler.simulation.together import Together
from twostep.autoscaler.simulation.trace import TraceRequest, denser, read_trace
from twostep.core.errors import ConfigError

MODEL = NodeModel(1000.0, StepTime(0.01, 0.01), kv_tokens=10_000)
TARGETS = TargetsConfig(ttft_s=2.0, tpot_s=0.1)


def wave(duration_s: int, *, seed: int = 1) -> list[TraceRequest]:
    """Return requests of 500 and 50 tokens at random, few at first and more and more to three times as many in the middle."""
    draw, at_s, found = Random(seed), 0.0, []
    while at_s < duration_s:
        busy = 1.0 + 2.0 * math.sin(math.pi * min(1.0, at_s / duration_s)) ** 2
        at_s += draw.expovariate(4.0 * busy)
        found.append(TraceRequest(at_s, 500, 50))
    return found


def test_a_request_alone_takes_its_prompt_then_its_steps_and_costs_its_nodes() -> None:
    fleet = Fleet([TraceRequest(0.0, 500, 11), TraceRequest(10.0, 500, 1)], MODEL, 0.0, NodeCount(1, 1))
    outcome = fleet.run(Fixed(NodeCount(1, 1)), ttft_s=0.5, tpot_s=0.02)
    first, last = fleet.served
    assert (first.first_s, first.last_s) == (0.5, pytest.approx(0.5 + 10 * 0.02))
    assert (last.first_s, last.last_s) == (10.5, 10.5)
    assert (outcome.attainment, outcome.node_s, outcome.changes) == (1.0, 20.0, 0)


def test_two_at_once_wait_for_the_prefill_node_and_slow_each_others_steps() -> None:
    fleet = Fleet([TraceRequest(0.0, 500, 101), TraceRequest(0.0, 500, 101)], MODEL, 0.0, NodeCount(1, 1))
    fleet.run(Fixed(NodeCount(1, 1)), ttft_s=1.0, tpot_s=0.1)
    one, other = fleet.served
    assert (one.first_s, other.first_s) == (0.5, 1.0)
    # Alone for 0.5 s, 25 steps of 20 ms; then both, steps of 30 ms.
    assert one.last_s == pytest.approx(1.0 + 75 * 0.03)
    assert other.last_s == pytest.approx(1.0 + 75 * 0.03 + 25 * 0.02)


def test_who_finds_no_room_for_its_kv_waits_until_somebody_has_finished() -> None:
    tight = NodeModel(1000.0, StepTime(0.01, 0.01), kv_tokens=600)
    fleet = Fleet([TraceRequest(0.0, 500, 11), TraceRequest(0.0, 500, 11)], tight, 0.0, NodeCount(2, 1))
    fleet.run(Fixed(NodeCount(2, 1)), ttft_s=9.0, tpot_s=9.0)
    assert fleet.served[1].first_s == pytest.approx(0.7 + 0.5)


def test_nodes_that_leave_finish_what_they_have_and_new_ones_take_their_time() -> None:
    class Shrink:
        interval_s = 0.25

        def decide(self, fleet: Fleet) -> NodeCount:
            return NodeCount(1, 2 if fleet.now_s == 0 else 1)

    requests = [TraceRequest(0.0, 100, 1001), TraceRequest(0.0, 100, 1001), TraceRequest(60.0, 1, 1)]
    fleet = Fleet(requests, MODEL, 5.0, NodeCount(1, 2))
    outcome = fleet.run(Shrink(), ttft_s=1.0, tpot_s=1.0)
    assert outcome.attainment == 1.0
    # One decode node goes when its answer of 20 s is done, the other two stay for the whole minute.
    assert 120.0 + 20.0 < outcome.node_s < 120.0 + 21.0
    assert fleet.num_changes == 1


def test_the_plan_follows_the_load_for_less_than_the_peak_and_within_its_changes() -> None:
    trace = wave(5400)
    config = AutoscalerConfig(
        prefill=PoolConfig(name="p", selector="a", max_nodes=40),
        decode=PoolConfig(name="d", selector="a", max_nodes=40),
        routers=RoutersConfig(selector="r"),
        targets=TARGETS,
        rates=RatesConfig(prefill_tokens_per_s=1000.0, decode_step_s=0.01, decode_sequence_s=0.01, startup_s=30.0),
    )
    peak = separate_pools(trace, MODEL, TARGETS)
    assert peak is not None
    ours = Fleet(trace, MODEL, 30.0, peak.nodes).run(Ours(config), TARGETS.ttft_s, TARGETS.tpot_s, from_s=600.0)
    static = Fleet(trace, MODEL, 30.0, peak.nodes).run(Fixed(peak.nodes), TARGETS.ttft_s, TARGETS.tpot_s, from_s=600.0)
    assert ours.attainment >= 0.97
    assert ours.node_s < 0.95 * static.node_s
    assert ours.changes_per_hour <= config.pace.max_events_per_hour


def test_nodes_that_do_both_compute_prompts_beside_their_steps_within_the_target() -> None:
    requests = [TraceRequest(0.0, 1, 1001), TraceRequest(1.0, 900, 2)]
    Together(requests, MODEL, 1, tpot_s=0.1).run(9.0, 9.0)
    alone = Together(requests[:1], MODEL, 1, tpot_s=0.1).run(1.0, 0.021)
    assert alone.attainment == 1.0
    # With a sequence running 90 of 100 ms are left for the prompt: 900 tokens take ten steps.
    assert Together(requests, MODEL, 1, tpot_s=0.1).run(1.01, 9.0).attainment == 1.0
    assert Together(requests, MODEL, 1, tpot_s=0.1).run(0.99, 9.0).attainment == 0.5


def test_separate_pools_pay_where_the_target_leaves_no_time_for_prompts_and_not_where_it_leaves_much() -> None:
    trace, model = wave(300), NodeModel(1000.0, StepTime(0.01, 0.0001), kv_tokens=100_000)
    for tpot_s, pays in ((0.012, True), (0.5, False)):
        targets = TargetsConfig(ttft_s=2.0, tpot_s=tpot_s)
        pair, whole = separate_pools(trace, model, targets), nodes_that_do_both(trace, model, targets)
        assert (pair is not None and (whole is None or pair.total < whole.nodes)) is pays


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9799600,4808,10
"""


def test_traces_in_two_forms_are_read(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    first, second = read_trace(tmp_path / "azure.csv")
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at_s == pytest.approx(0.052)
    (tmp_path / "m.jsonl").write_text('{"timestamp": 500, "input_length": 7, "output_length": 3, "hash_ids": [1]}\n')
    assert read_trace(tmp_path / "m.jsonl") == [TraceRequest(0.0, 7, 3)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (AZURE + "yesterday,1,1\n", "t.csv, about line 4: expected a request of a trace, found Invalid isoformat"),
        (AZURE + "2023-11-16 18:17:05,0,1\n", "0 prompt tokens and 1 of the answer"),
        ("a,b\n1,2\n", "about line 2: expected a request of a trace, found 'TIMESTAMP'"),
        ("", "expected requests, found none"),
        ('{"timestamp": 1}\n', "found 'input_length'"),
    ],
)
def test_what_is_no_trace_is_refused_by_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_trace(tmp_path / "t.csv")
    assert sentence in str(raised.value)
    with pytest.raises(ConfigError, match="nowhere"):
        read_trace(tmp_path / "nowhere")


def test_a_denser_trace_has_the_same_requests_more_often_at_about_the_same_times() -> None:
    trace = [TraceRequest(10.0 * index, index + 1, 1) for index in range(5)]
    more = denser(trace, 3)
    assert sorted(one.prompt_tokens for one in more) == sorted([1, 2, 3, 4, 5] * 3)
    assert all(abs(one.at_s - 10.0 * (one.prompt_tokens - 1)) <= 2.0 for one in more)
    assert denser(trace, 3) == more
