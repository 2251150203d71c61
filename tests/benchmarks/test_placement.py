"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
from pathlib import Path

import pytest

from twostep.benchmarks import placement
from twostep.benchmarks.harness.targets import read_targets
from twostep.benchmarks.placement_rows.constants import Constants
from twostep.benchmarks.placement_rows.policies import POLICIES
from twostep.benchmarks.placement_rows.replay import Layout, Replay
from twostep.benchmarks.placement_rows.trace import Arrival, read_trace

SMALL = Constants(num_blocks=64, block_tokens=512)


def conversation(num_turns: int) -> list[Arrival]:
    """Two talks that go on in turn, each prompt holding the one before."""
    return [
        Arrival(5.0 * turn + talk, 512 * (turn + 2), 9, tuple(1000 * talk + block for block in range(turn + 2)))
        for turn in range(num_turns)
        for talk in range(2)
    ]


def test_every_measurement_fills_rows_that_were_promised_and_no_two_the_same() -> None:
    filled = [row for measurement in placement.benchmark(None).measurements for row in measurement.rows]
    assert sorted(filled) == sorted(target.name for target in read_targets("placement"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", [Layout(0, 2), Layout(2, 2)])
def test_every_request_of_a_replay_is_answered_to_its_end(policy: str, layout: Layout) -> None:
    replay = Replay(conversation(4), layout, POLICIES[policy], SMALL)
    replay.run()
    assert [len(one.moments) for one in replay.served.values()] == [3] * 8
    assert all(one.ttft_s > 0 and one.tpot_s > 0 for one in replay.served.values())


def test_who_knows_prefixes_finds_them_and_who_takes_turns_does_not() -> None:
    reuse = {}
    for policy in ("twostep", "prefix only", "round robin"):
        replay = Replay(conversation(6), Layout(0, 3), POLICIES[policy], SMALL)
        replay.run()
        reuse[policy] = sum(one.cached_tokens for one in replay.served.values())
    assert reuse["twostep"] == reuse["prefix only"] > reuse["round robin"]


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0}\n')
    with pytest.raises(ValueError, match="expected timestamp, input_length, output_length and hash_ids"):
        list(read_trace(tmp_path / "trace.jsonl"))


def test_a_prompt_is_as_long_as_the_trace_says_and_equal_where_its_blocks_are() -> None:
    first, second = Arrival(0.0, 700, 1, (1, 2)), Arrival(0.0, 600, 1, (1, 3))
    assert len(first.prompt()) == 700
    assert first.prompt()[:512] == second.prompt()[:512]
    assert first.prompt()[512] != second.prompt()[512]


def test_it_runs_as_a_program_over_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, file = tmp_path / "trace.jsonl", tmp_path / "placement.json"
    lines = [
        {"timestamp": 1000 * one.at_s, "input_length": one.num_tokens, "output_length": 9, "hash_ids": one.blocks}
        for one in conversation(3)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert placement.main(["--quick", "--trace", str(trace), "--only", "6P 2D", "--json", str(file)]) == 0
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    row = rows["prefix reuse, Mooncake conversation trace, 6P 2D, against round robin"]
    assert row["ours"] >= row["peer"]
    assert "step_s 0.02" in capsys.readouterr().out
