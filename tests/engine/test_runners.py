"""A node's `model` names the fake runner, with knobs, or a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from twostep.core.errors import ConfigError
from twostep.engine.config import EngineConfig
from twostep.engine.fake_runner import FakeModel
from twostep.engine.runners import build_runner, fake_model
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.engine.tiny_llama import write_tiny_llama


def test_the_fake_models_knobs_are_read() -> None:
    assert fake_model("") == FakeModel()
    assert fake_model("vocab_size=500,step_s=0.01") == FakeModel(vocab_size=500, step_s=0.01)


@pytest.mark.parametrize(
    "knobs", ["size=3", "vocab_size=many", "vocab_size", "vocab_size=0", "num_layers=0", "step_s=-1", "token_s=.inf"]
)
def test_a_wrong_knob_is_refused_by_name(knobs: str) -> None:
    with pytest.raises(ConfigError, match=knobs.partition("=")[0]):
        build_runner(f"fake:{knobs}", EngineConfig())


def test_a_folder_gives_a_torch_runner(tmp_path: Path) -> None:
    runner = build_runner(write_tiny_llama(tmp_path / "m").folder, EngineConfig(kv_bytes=1 << 20, num_threads=1))
    assert isinstance(runner, TorchRunner)
    assert runner.fingerprint.model == "m"


def test_the_fake_runner_needs_no_torch() -> None:
    program = (
        "import sys; from twostep.engine.runners import build_runner; from twostep.engine.config import EngineConfig;"
        "build_runner('fake', EngineConfig(kv_bytes=1 << 20)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
