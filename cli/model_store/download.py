"""Fetches a wheel through pip's own client, so that the user's index, proxy and certificate settings apply."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from twostep.core.errors import ConfigError

OnBytes = Callable[[int], None]
"""Called with the number of bytes downloaded so far."""

POLL_S = 0.2


class PinnedWheel(Protocol):
    """A package with its version, and the SHA-256 of its wheel."""

    @property
    def requirement(self) -> str: ...

    @property
    def sha256(self) -> str: ...


def download_wheel(entry: PinnedWheel, folder: Path, on_bytes: OnBytes) -> Path:
    """Return the path of the entry's intact wheel in `folder`; one that an earlier try left there is not fetched again.

    Raises ConfigError when pip cannot fetch it, or its SHA-256 is not the catalogue's.
    """
    for wheel in folder.glob("*.whl"):
        if _sha256(wheel) == entry.sha256:
            return wheel
        wheel.unlink()
    _run_pip(entry, folder, on_bytes)
    wheel = next(folder.glob("*.whl"))
    found = _sha256(wheel)
    if found != entry.sha256:
        wheel.unlink()
        raise ConfigError(f"{wheel.name} is not what it should be: its SHA-256 is {found}, expected {entry.sha256}")
    return wheel


def _run_pip(entry: PinnedWheel, folder: Path, on_bytes: OnBytes) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    # pip unpacks into its temporary folder: inside ours, its growth can be watched and nothing is left behind.
    temporary = folder / "pip"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with subprocess.Popen(
        [*command, "--progress-bar=off", "--dest", str(folder), entry.requirement],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        errors = _watch(pip, temporary, on_bytes)
    if pip.returncode != 0:
        raise ConfigError(f"cannot download {entry.requirement}: {_explain(errors)}")


def _watch(pip: subprocess.Popen[str], folder: Path, on_bytes: OnBytes) -> str:
    try:
        while True:
            try:
                return pip.communicate(timeout=POLL_S)[1]
            except subprocess.TimeoutExpired:
                on_bytes(folder_size(folder))
    except BaseException:
        pip.terminate()
        raise


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below `folder`; what pip moves away meanwhile, files or folders, counts as nothing."""
    return sum(_file_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def _file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _explain(errors: str) -> str:
    """Return one line: what to do, or what pip said last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip`"
    if any("(from versions: none)" in line for line in lines):
        return "pip found it on no index that it could reach: check the network and pip's settings (PIP_INDEX_URL)"
    reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "pip failed")
    return reason.removeprefix("ERROR:").strip()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
