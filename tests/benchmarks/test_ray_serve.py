"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.harness.targets import read_targets
from twostep.benchmarks.ray_serve import RAY_SERVE

ROOT = Path(__file__).parents[2]


def test_every_row_that_was_promised_is_filled_by_one_measurement() -> None:
    filled = [row for measurement in RAY_SERVE.measurements for row in measurement.rows]
    assert filled == [target.name for target in read_targets("ray_serve")]


@pytest.mark.long
@pytest.mark.processes
def test_the_benchmark_runs_as_a_program_and_measures_both_doors(tmp_path: Path) -> None:
    file = tmp_path / "ray_serve.json"
    command = [sys.executable, "benchmarks/ray_serve.py", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == [target.name for target in read_targets("ray_serve")]
    assert all(row["ours"] > 0 and row["peer"] > 0 and "failed" not in row["note"] for row in rows)
