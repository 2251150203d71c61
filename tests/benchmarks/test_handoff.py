"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.handoff import HANDOFF
from twostep.benchmarks.harness.targets import read_targets

ROOT = Path(__file__).parents[2]
MEASURED = "short request after ten cancelled 4k prompts"


def test_every_measurement_fills_rows_that_were_promised_and_no_two_the_same() -> None:
    filled = [row for measurement in HANDOFF.measurements for row in measurement.rows]
    assert set(filled) <= {target.name for target in read_targets("handoff")}
    assert len(set(filled)) == len(filled)


@pytest.mark.processes
def test_the_benchmark_runs_as_a_program_and_tells_every_row(tmp_path: Path) -> None:
    file = tmp_path / "handoff.json"
    command = [sys.executable, "benchmarks/handoff.py", "--quick", "--only", MEASURED, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    rows = {row["name"]: row for row in told["rows"]}
    assert list(rows) == [target.name for target in read_targets("handoff")]
    assert [name for name, row in rows.items() if row["ours"] is not None] == [MEASURED]
    assert {(row["met"], row["note"]) for row in rows.values() if row["ours"] is None} == {(None, "not measured in this run")}
    assert len(told["samples"][MEASURED]["ours"]) == 2
    assert all(f"| {name}" in done.stdout for name in rows)
