"""What a node loads at its start, and what it does not: seconds lie there."""

import subprocess
import sys

import pytest

from twostep.cli.model_store.catalogue import find_model

PROGRAM = """
import sys
from pathlib import Path
from twostep.engine.config import EngineConfig
from twostep.engine.runners import build_runner

build_runner(Path(sys.argv[1]), EngineConfig(kv_bytes=1 << 24))
print(sorted({"torch._dynamo", "torch._inductor", "transformers"} & sys.modules.keys()))
"""


@pytest.mark.processes
@pytest.mark.model
def test_a_model_is_loaded_without_torchs_compiler_and_without_transformers() -> None:
    command = [sys.executable, "-c", PROGRAM, str(find_model("smollm2"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
