"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.discovery import DISCOVERY
from twostep.benchmarks.discovery_rows.many_nodes import Ages
from twostep.benchmarks.harness.targets import read_targets

ROOT = Path(__file__).parents[2]


def test_every_row_that_was_promised_is_filled_by_one_measurement() -> None:
    filled = [row for measurement in DISCOVERY.measurements for row in measurement.rows]
    assert filled == [target.name for target in read_targets("discovery")]


def test_a_change_has_one_age_however_often_it_is_seen_and_what_was_there_before_has_none() -> None:
    ages = Ages()
    for _ in range(2):
        ages.note(["pod-1", "pod-2-at-0.0"])
    assert len(ages.noted_ms) == 1
    assert ages.noted_ms[0] > 0


@pytest.mark.long
@pytest.mark.processes
def test_the_benchmark_runs_as_a_program_and_measures_both_watches(tmp_path: Path) -> None:
    file = tmp_path / "discovery.json"
    command = [sys.executable, "benchmarks/discovery.py", "--quick", "--only", "the watch alone", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == [target.name for target in read_targets("discovery")]
    assert all(row["ours"] > 0 and row["peer"] > 0 for name, row in rows.items() if name.startswith("the watch alone"))
