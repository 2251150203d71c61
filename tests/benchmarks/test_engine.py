"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.cpu_rows.mixed_load import times_between
from twostep.benchmarks.engine import ENGINE
from twostep.benchmarks.harness.targets import read_targets

ROOT = Path(__file__).parents[2]


def test_every_promised_row_is_filled_by_one_measurement() -> None:
    filled = [row for measurement in ENGINE.measurements for row in measurement.rows]
    assert sorted(filled) == sorted(target.name for target in read_targets("engine"))


def test_times_between_tokens_count_from_the_first_that_came_after_the_start() -> None:
    assert times_between([1.0, 2.0, 4.0, 7.0], since=3.0) == [2.0, 3.0]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.model
def test_the_benchmark_runs_as_a_program_and_says_that_the_peer_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    command = [sys.executable, "benchmarks/engine.py", "--quick", "--only", "512 tokens a step", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(file.read_text())["rows"] if row["ours"] is not None]
    assert [row["name"].rpartition(": ")[2] for row in rows] == ["TTFT p50", "TTFT p99", "ITL p50", "ITL p99"]
    assert all(row["ours"] > 0 and row["met"] is None and "did not run here" in row["note"] for row in rows)
