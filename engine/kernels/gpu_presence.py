"""Says whether a GPU can be computed on here: the edge at which what is missing becomes a clear error."""

from importlib.util import find_spec

import torch

from twostep.core.errors import ConfigError


def require_gpu(index: int = 0) -> None:
    """Raise ConfigError when torch sees no such GPU."""
    if index >= torch.cuda.device_count():
        raise ConfigError(f"engine.device = cuda: torch sees {torch.cuda.device_count()} GPUs here")


def require_triton() -> None:
    """Raise ConfigError when Triton is not installed."""
    if find_spec("triton") is None:
        raise ConfigError("computing on a GPU needs triton: install twostep[gpu]")
