"""Reads a program's configuration: one frozen dataclass, one YAML file, then `--set a.b=c`.

Environment variables are for secrets only. An unknown key is an error that names the file, the key and what is known.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from twostep.core.errors import ConfigError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose values are checked and whose unknown keys are refused."""
    strict = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    return cast(type[T], pydantic_dataclass(frozen=True, kw_only=True, slots=True, config=strict)(cls))


def load(cls: type[T], path: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """Return `cls` filled from the YAML file at `path`, then from `overrides` of the form `a.b=value`.

    Raises ConfigError, naming source, key, value and expectation.
    """
    values = _read(path) if path else {}
    for override in overrides:
        _apply(values, override)
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as cause:
        raise ConfigError(_explain(cause, path, overrides)) from cause


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(cause).split())}") from cause
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(values).__name__}")
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"--set {override}: expected KEY=VALUE with a dotted key, such as engine.dtype=float32")
    *parents, leaf = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {parent} is a value, not a section")
    try:
        values[leaf] = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise ConfigError(f"--set {override}: the value is not valid YAML") from cause


def _explain(cause: ValidationError, path: Path | None, overrides: Sequence[str]) -> str:
    return "; ".join(_explain_one(error, path, overrides) for error in cause.errors(include_url=False))


def _explain_one(error: Any, path: Path | None, overrides: Sequence[str]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    given_by_set = any(
        key == override.partition("=")[0] or key.startswith(override.partition("=")[0] + ".") for override in overrides
    )
    source = "--set" if given_by_set or path is None else str(path)
    if error["type"] == "unexpected_keyword_argument":
        return f"{source}: unknown key {key} (value {error['input']!r})"
    return f"{source}: {key}: {error['msg']}, found {error['input']!r}"
