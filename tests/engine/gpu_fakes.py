"""Engines over a device that is none: reference kernels, graphs that are tapes."""

from pathlib import Path
from typing import Any

from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.gpu.build import build_gpu_runner
from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.gpu.runner import GpuRunner
from twostep.engine.kernels.kernel_set import KernelSet
from twostep.engine.kernels.twins import TorchKernels

MEMORY_BYTES = 1 << 27


def gpu_config(**changes: Any) -> EngineConfig:
    return EngineConfig(
        **{"dtype": "float32", "kv_bytes": 1 << 22, "layer_group": 2, "num_threads": 1, "max_batch": 6, **changes}
    )


def gpu_runner(folder: Path, kernels: KernelSet | None = None, **changes: Any) -> GpuRunner:
    device = CpuDevice(kernels or TorchKernels(), memory_bytes=MEMORY_BYTES)
    return build_gpu_runner(folder, gpu_config(**changes), device)


def gpu_engine(folder: Path, kernels: KernelSet | None = None, **changes: Any) -> Engine:
    return Engine(gpu_runner(folder, kernels, **changes), gpu_config(**changes), clock=lambda: 0.0)
