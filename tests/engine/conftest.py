"""A cache of their own for the engine's tests, but for compiled kernels: those are worth keeping."""

from pathlib import Path

import pytest

from twostep.core.cache_folder import cache_folder
from twostep.engine.kernels.cpu.instruction_set import INSTRUCTION_SETS, available


@pytest.fixture(scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept, own = cache_folder() / "kernels", tmp_path_factory.mktemp("cache")
    kept.mkdir(parents=True, exist_ok=True)
    (own / "twostep").mkdir()
    (own / "twostep" / "kernels").symlink_to(kept)
    return own


@pytest.fixture(autouse=True)
def _own_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))


@pytest.fixture(params=["torch", *(each.name for each in INSTRUCTION_SETS)])
def kernels(request: pytest.FixtureRequest) -> str:
    """Each value of `engine.kernels` that this processor allows."""
    name = str(request.param)
    if name not in ("torch", *(each.name for each in available())):
        pytest.skip(f"this processor has no {name}")
    return name
