"""What is written from values.yaml and the dataclasses is current: run `make chart` when this fails."""

import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).parents[2] / "deploy" / "helm" / "generate.py"


def test_what_is_generated_is_current() -> None:
    done = subprocess.run([sys.executable, str(GENERATE), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
