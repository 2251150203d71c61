"""Names a model's weights by their content; hashing is remembered by path, size and time of change, where it can be."""

import hashlib
import json
import logging
import os
from pathlib import Path

from twostep.engine.model_folder import ModelFolder

log = logging.getLogger(__name__)


def weights_digest(folder: ModelFolder, cache: Path) -> str:
    """Return a SHA-256 over the folder's safetensors files. `cache` is a folder for what is remembered."""
    whole = hashlib.sha256()
    for file in folder.weight_files:
        whole.update(bytes.fromhex(_file_digest(file, cache)))
    return whole.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_digest(file: Path, cache: Path) -> str:
    state = file.stat()
    seen: dict[str, str | int] = {"path": str(file), "size": state.st_size, "mtime_ns": state.st_mtime_ns}
    entry = cache / f"{hashlib.sha256(str(file).encode()).hexdigest()[:32]}.json"
    known = _read(entry)
    if {key: known.get(key) for key in seen} == seen:
        return str(known["sha256"])
    digest = file_sha256(file)
    try:
        _write(entry, seen | {"sha256": digest})
    except OSError as cause:
        log.warning("weights will be hashed again at the next start", extra={"cache": str(entry), "reason": str(cause)})
    return digest


def _read(entry: Path) -> dict[str, str | int]:
    try:
        known = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(entry: Path, values: dict[str, str | int]) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = entry.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(values), encoding="utf-8")
    partial.rename(entry)
