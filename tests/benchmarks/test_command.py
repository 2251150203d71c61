import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from twostep.benchmarks.harness.command import Benchmark, Measurement, Outcomes, run
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.harness.targets import read_targets

MET, BROKEN = "graph misses in 10k mixed steps", "host gap of the decode loop"


async def no_peaks(effort: Effort) -> Mapping[str, float]:
    return {"read GB/s": 40.0}


async def count_misses(effort: Effort) -> Outcomes:
    return {MET: Measured((0.0,) * effort.rounds)}


async def break_down(effort: Effort) -> Outcomes:
    raise OSError("no such device")


H200 = Benchmark("h200", no_peaks, [Measurement((MET,), count_misses), Measurement((BROKEN,), break_down)])


def test_every_row_is_told_and_what_broke_is_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "h200.json"
    assert run(H200, ["--quick", "--json", str(file)]) == 1
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == [target.name for target in read_targets("h200")]
    assert (rows[MET]["ours"], rows[MET]["met"]) == (0.0, True)
    assert (rows[BROKEN]["met"], rows[BROKEN]["note"]) == (False, "broke: OSError: no such device")
    others = [row for row in rows.values() if row["name"] not in (MET, BROKEN)]
    assert {(row["ours"], row["met"], row["note"]) for row in others} == {(None, None, "not measured in this run")}
    assert f"| {MET}" in capsys.readouterr().out


def test_one_row_can_be_measured_alone() -> None:
    assert run(H200, ["--only", "graph misses"]) == 0
