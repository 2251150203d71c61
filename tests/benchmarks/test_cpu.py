"""Keeps the benchmark running: its shape is looked at, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.cpu import CPU
from twostep.benchmarks.cpu_rows.start import START_ROW
from twostep.benchmarks.harness.targets import read_targets

ROOT = Path(__file__).parents[2]


def test_every_row_that_was_promised_is_filled_by_one_measurement() -> None:
    filled = [row for measurement in CPU.measurements for row in measurement.rows]
    assert sorted(filled) == sorted(target.name for target in read_targets("cpu"))


def test_a_row_whose_peer_is_never_started_names_none() -> None:
    assert [target.peer_name for target in read_targets("cpu") if target.name == START_ROW] == [None]


@pytest.mark.processes
@pytest.mark.model
def test_the_benchmark_runs_as_a_program_and_says_that_the_peer_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    command = [sys.executable, "benchmarks/cpu.py", "--quick", "--only", "prefill of 512", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == [target.name for target in read_targets("cpu")]
    assert rows["prefill of 512 tokens"]["ours"] > 0
    assert (rows["prefill of 512 tokens"]["met"], rows["prefill of 512 tokens"]["note"]) == (None, "vLLM 0.32 did not run here")
    assert rows["prefill of 512 tokens, arithmetic"]["ratio"] > 0
