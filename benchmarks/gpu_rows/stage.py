"""Where the GPU's benchmark runs, and how large everything is there: on a GPU, or dry, on a CPU, to run every line of it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured, Outcome, Unmeasured
from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.gpu.device import Device
from twostep.engine.kernels.kernel_set import KernelSet
from twostep.engine.kernels.twins import TorchKernels

Config = Mapping[str, Any]
T = TypeVar("T")

BLOCK_TOKENS = 32
QWEN = "Qwen3-0.6B"
LLAMA = "Llama-3.1-8B"
FULL: Mapping[str, Config] = {
    QWEN: {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    LLAMA: {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
}
"""As their publishers' `config.json` have it, what our models do not read left out."""
SMALL: Config = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 131,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """`batches` and `prompts` are what the rows named by 1, 16, 64 and 256, and by 512, 2k and 8k, measure."""

    batches: tuple[int, int, int, int] = (1, 16, 64, 256)
    prompts: tuple[int, int, int] = (512, 2048, 8192)
    context: int = 1024
    num_warm_up_steps: int = 5
    num_steps: int = 40
    num_mixed_steps: int = 10_000
    live_requests: int = 16
    stream_bytes: int = 4 << 30
    gemm_size: int = 8192


DRY = Sizes((1, 1, 1, 2), (2, 3, 9), 33, 0, 1, 4, 2, 1 << 16, 32)


@dataclass(frozen=True, slots=True)
class Stage:
    """A device with its sizes and the models' shapes; `why_dry` says why no time that is taken here means anything."""

    device: Device
    sizes: Sizes
    models: Mapping[str, Config]
    why_dry: str = ""

    def repeat(self, effort: Effort, figure: Callable[[], T]) -> list[T]:
        """Take a figure in each round, after one that warms up; dry, once."""
        if self.why_dry:
            return [figure()]
        figure()
        return [figure() for _ in range(effort.rounds)]

    def timed(self, ours: Sequence[float], peer: float | None = None, note: str = "") -> Outcome:
        """Return what a row says of these figures, and of the device's peak beside them."""
        if self.why_dry:
            return Unmeasured(self.why_dry)
        return Measured(tuple(ours), () if peer is None else (peer,) * len(ours), note=note)

    def shortest_s(self, work: Callable[[], object], tries: int = 7) -> float:
        """Return the shortest time that the device took for the work, launched alone."""
        work()
        durations = []
        for _ in range(tries):
            self.device.finish()
            started = time.perf_counter()
            work()
            self.device.finish()
            durations.append(time.perf_counter() - started)
        return min(durations)


def gpu_stage() -> Stage:
    """Return the first GPU. Raises ConfigError where there is none."""
    from twostep.engine.gpu.cuda_device import CudaDevice

    return Stage(CudaDevice(), Sizes(), FULL)


def dry_stage() -> Stage:
    """Return a CPU, with Triton's interpreter where Triton is installed."""
    small = {name: {**config, **SMALL} for name, config in FULL.items()}
    kernels, what = _dry_kernels()
    return Stage(CpuDevice(kernels), DRY, small, f"it ran, on a CPU with {what}")


def _dry_kernels() -> tuple[KernelSet, str]:
    if find_spec("triton") is None:
        return TorchKernels(), "reference kernels, as Triton is not installed"
    os.environ.setdefault("TRITON_INTERPRET", "1")
    from twostep.benchmarks.gpu_rows.interpreter import mend_interpreter
    from twostep.engine.kernels.gpu.kernel_set import TritonKernels

    mend_interpreter()
    return TritonKernels(), "Triton's interpreter"


def seeded(seed: int, place: torch.device) -> torch.Generator:
    """Return chance that is the same in each run."""
    return torch.Generator(place).manual_seed(seed)
