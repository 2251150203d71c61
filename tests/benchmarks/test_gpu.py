"""Keeps the GPU's benchmark running where there is none: every line of it, never its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.benchmarks.gpu import gpu_benchmark
from twostep.benchmarks.gpu_rows.stage import dry_stage
from twostep.benchmarks.harness.targets import read_targets

ROOT = Path(__file__).parents[2]
NO_PYDANTIC = """
import sys
from importlib.abc import MetaPathFinder
class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pydantic", "gguf"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hide())
"""


def test_every_measurement_fills_rows_that_were_promised_and_no_two_the_same() -> None:
    filled = [row for measurement in gpu_benchmark(dry_stage()).measurements for row in measurement.rows]
    assert sorted(filled) == sorted(target.name for target in read_targets("h200"))


@pytest.mark.model
def test_it_runs_dry_as_a_program_even_without_pydantic(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    (tmp_path / "sitecustomize.py").write_text(NO_PYDANTIC)
    command = [sys.executable, "benchmarks/gpu.py", "--dry", "--quick", "--json", str(file)]
    where = {"PYTHONPATH": f"{tmp_path}:{ROOT / '.dev'}", "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    exact = ["kernels whose", "answers that", "graph misses"]
    assert {rows[name]["ours"] for name in rows if any(name.startswith(begin) for begin in exact)} == {0.0}
    timed = [row for name, row in rows.items() if not any(name.startswith(begin) for begin in exact)]
    assert all((row["ours"], row["met"]) == (None, None) for row in timed)
    assert {row["note"].partition(",")[0] for row in timed} <= {"it ran", "NIXL is not installed"}
