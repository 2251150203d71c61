"""A Hugging Face model folder: what must be in it, and where each tensor lies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from twostep.core.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`config` is config.json's contents; `tensor_files` says which file holds each tensor."""

    path: Path
    config: Mapping[str, Any]
    tensor_files: Mapping[str, Path]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def weight_files(self) -> list[Path]:
        return sorted(set(self.tensor_files.values()))

    @property
    def tokenizer(self) -> Path:
        return self.path / TOKENIZER


def open_model_folder(path: Path) -> ModelFolder:
    """Raises ConfigError, in one line that names what is missing or broken, when `path` is no usable model folder."""
    path = path.expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"model folder {path}: there is no such folder")
    config = _read_json(path / "config.json")
    if "quantization_config" in config:
        raise ConfigError(f"model folder {path}: quantized weights are not supported")
    if not (path / TOKENIZER).is_file():
        raise ConfigError(f"model folder {path}: {TOKENIZER} is missing")
    return ModelFolder(path, config, _tensor_files(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise ConfigError(f"model folder {path.parent}: {path.name} is missing") from cause
    except (OSError, ValueError) as cause:
        raise ConfigError(f"model folder {path.parent}: {path.name} cannot be read: {cause}") from cause
    if not isinstance(values, dict):
        raise ConfigError(f"model folder {path.parent}: {path.name} should hold an object")
    return values


def _tensor_files(path: Path) -> dict[str, Path]:
    if (path / INDEX).is_file():
        files = {name: path / file for name, file in _read_json(path / INDEX).get("weight_map", {}).items()}
        missing = sorted({file.name for file in files.values() if not file.is_file()})
        if missing:
            raise ConfigError(f"model folder {path}: {INDEX} names {', '.join(missing)}, missing")
        return files
    if not (path / SINGLE).is_file():
        raise ConfigError(f"model folder {path}: neither {SINGLE} nor {INDEX} is there")
    try:
        with safe_open(path / SINGLE, framework="numpy") as tensors:
            return dict.fromkeys(tensors.keys(), path / SINGLE)
    except (SafetensorError, OSError) as cause:
        raise ConfigError(f"model folder {path}: {SINGLE} is broken: {cause}") from cause
