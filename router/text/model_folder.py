"""Reads the JSON files of a model folder in Hugging Face format."""

import json
from pathlib import Path
from typing import Any

from twostep.core.errors import ConfigError


def is_fake(model: str) -> bool:
    """Whether `model` is the built-in fake model and not a folder."""
    return model.partition(":")[0] == "fake"


def model_folder(model: str) -> Path:
    """Return the folder that `model` names. Raises ConfigError when there is none."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"model: expected a model folder in Hugging Face format or `fake`, found {model!r}")
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file, nothing when there is no such file. Raises ConfigError."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values
