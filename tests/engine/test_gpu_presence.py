"""A GPU without Triton is a clear error."""

from importlib.machinery import ModuleSpec

import pytest

from twostep.core.errors import ConfigError
from twostep.engine.kernels import gpu_presence


def test_a_missing_triton_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_presence, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^computing on a GPU needs triton: install twostep\[gpu\]$"):
        gpu_presence.require_triton()


def test_a_triton_that_is_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_presence, "find_spec", lambda name: ModuleSpec(name, None))
    gpu_presence.require_triton()
