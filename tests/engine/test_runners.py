"""A node's `model` names the fake runner, with knobs, or a folder."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

from twostep.core.errors import ConfigError
from twostep.engine.config import EngineConfig
from twostep.engine.fake_runner import FakeModel
from twostep.engine.gpu.build import why_uncovered
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


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_gpu_is_had_when_it_is_asked_for_or_the_node_does_not_start(
    device: Literal["cuda", "auto"], kernels: Literal["auto", "torch"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    folder = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4).folder
    with pytest.raises(ConfigError, match="torch sees 0 GPUs"):
        build_runner(folder, EngineConfig(device=device, kernels=kernels))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EngineConfig(device="cuda", kernels="portable"), "engine.kernels = portable: that is for CPUs"),
        (EngineConfig(device="cuda", own_cores=True), "engine.own_cores = true: that is for CPUs"),
    ],
)
def test_what_is_for_cpus_is_refused_on_a_gpu(config: EngineConfig, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        build_runner(write_tiny_llama(tmp_path / "m").folder, config)


def test_a_model_that_the_kernels_cannot_compute_is_told(tmp_path: Path) -> None:
    even, odd = {"hidden_size": 64, "num_attention_heads": 4}, {"hidden_size": 48, "num_attention_heads": 6}
    assert why_uncovered(write_tiny_llama(tmp_path / "m", **even).folder) == ""
    assert "do not cover" in why_uncovered(write_tiny_llama(tmp_path / "n", **odd).folder)


def test_the_fake_runner_needs_no_torch() -> None:
    program = (
        "import sys; from twostep.engine.runners import build_runner; from twostep.engine.config import EngineConfig;"
        "build_runner('fake', EngineConfig(kv_bytes=1 << 20)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
