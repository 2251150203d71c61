"""Builds the runner that a node's configuration names, importing torch only when a real model is meant."""

from dataclasses import fields
from pathlib import Path

from twostep.core.config import load
from twostep.core.errors import ConfigError
from twostep.engine.config import EngineConfig
from twostep.engine.fake_runner import FakeModel, FakeRunner
from twostep.engine.progress import Tell, tell_nobody
from twostep.engine.runner import Runner


def build_runner(model: str | Path, config: EngineConfig, *, landing_bytes: int = 0, tell: Tell = tell_nobody) -> Runner:
    """Return a runner for `model`: `fake`, `fake:vocab_size=500,step_s=0.01`, or a Hugging Face folder.

    Leaves `landing_bytes` of memory to somebody else; `tell` hears what is being loaded. Raises ConfigError.
    """
    kind, _, knobs = str(model).partition(":")
    if kind == "fake":
        return FakeRunner(fake_model(knobs), config, landing_bytes=landing_bytes)
    return _model_runner(Path(model), config, landing_bytes, tell)


def fake_model(knobs: str) -> FakeModel:
    """Read `vocab_size=500,step_s=0.01` into a FakeModel. Raises ConfigError, naming the known keys."""
    overrides = [knob for knob in knobs.split(",") if knob]
    known = {field.name for field in fields(FakeModel)}
    for override in overrides:
        key = override.partition("=")[0]
        if key not in known:
            raise ConfigError(f"model fake: unknown key {key}: expected one of {', '.join(sorted(known))}")
    return load(FakeModel, overrides=overrides)


def _model_runner(folder: Path, config: EngineConfig, landing_bytes: int, tell: Tell) -> Runner:
    try:
        import torch

        from twostep.engine.torch_runner import TorchRunner
    except ImportError as cause:
        raise ConfigError(f"serving a model needs {cause.name}: install twostep[node]") from cause
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return TorchRunner(folder, config, landing_bytes=landing_bytes, tell=tell)
    return _gpu_runner(folder, config, landing_bytes, tell)


def _gpu_runner(folder: Path, config: EngineConfig, landing_bytes: int, tell: Tell) -> Runner:
    """Return Triton's kernels at work, or torch where it was asked for, or where they do not cover the model: that is told."""
    from twostep.engine.gpu.build import build_gpu_runner, why_uncovered
    from twostep.engine.gpu.cuda_device import CudaDevice
    from twostep.engine.kernels.gpu_presence import require_gpu
    from twostep.engine.torch_runner import TorchRunner

    if config.kernels not in ("auto", "torch"):
        raise ConfigError(f"engine.kernels = {config.kernels}: that is for CPUs, and engine.device is a GPU here")
    if config.own_cores:
        raise ConfigError("engine.own_cores = true: that is for CPUs, and engine.device is a GPU here")
    require_gpu()
    reason = why_uncovered(folder)
    if config.kernels == "torch" or reason:
        return TorchRunner(folder, config, "cuda", landing_bytes=landing_bytes, tell=tell, why_torch=reason)
    return build_gpu_runner(folder, config, CudaDevice(), landing_bytes=landing_bytes, tell=tell)
