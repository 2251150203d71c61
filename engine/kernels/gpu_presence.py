"""Says whether the kernels for GPUs can be loaded here: the edge at which a missing package becomes a clear error."""

from importlib.util import find_spec

from twostep.core.errors import ConfigError


def require_triton() -> None:
    """Raise ConfigError when Triton is not installed."""
    if find_spec("triton") is None:
        raise ConfigError("computing on a GPU needs triton: install twostep[gpu]")
