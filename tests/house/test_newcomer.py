"""The README's first command, as somebody types it who has just cloned the repository and has an empty home."""

import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_S = 300
AGAIN_S = 30


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.model
@pytest.mark.timeout(FIRST_S + AGAIN_S + 60)
def test_a_newcomer_sees_the_answer_after_one_command(tmp_path: Path) -> None:
    clone, home = tmp_path / "twostep", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    for limit_s in (FIRST_S, AGAIN_S):
        started = time.monotonic()
        answer = make_demo(clone, home)
        assert "Paris" in answer
        assert "decode computed 0;" in answer
        assert time.monotonic() - started < limit_s


def make_demo(clone: Path, home: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("PIP_")}
    done = subprocess.run(
        ["make", "demo"],
        cwd=clone,
        env={**kept, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
