"""`twostep demo` as a person types it."""

import os
import subprocess
from pathlib import Path

import pytest

from twostep.tests.cli.running import COMMAND

pytestmark = pytest.mark.processes


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run([*COMMAND, "demo", *options], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france_and_the_bill_tells_how_it_came_about(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "> What is the capital of France?\nThe capital of France is Paris." in done.stdout
    parts = ("queue", "reserve", "prefill", "transfer, hidden", "transfer, exposed", "attach", "first decode step", "per token")
    for part in parts:
        assert f"\n{part} " in done.stdout
    proof = done.stdout.splitlines()[-1]
    assert proof.startswith("prefill computed 37 prompt tokens, decode computed 0; ")
    assert proof.endswith(" bytes of KV crossed between them over nixl")
    assert list(tmp_path.glob("twostep-*")) == []


def test_a_demo_whose_kv_did_not_cross_over_nixl_has_failed(tmp_path: Path) -> None:
    done = demo(tmp_path, "--model", "fake", "--transport", "local")
    assert done.returncode == 1
    assert done.stdout.endswith("this is not what twostep promises: the KV did not cross over nixl\n")
