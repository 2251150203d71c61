"""Reads values out of a model's `config.json`, with errors that name the key."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any, TypeVar

from twostep.core.errors import ConfigError

T = TypeVar("T", int, float, bool, str)


def value(config: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return `config[key]`, or `default` where it is absent or null. Raises ConfigError."""
    found = optional(config, key, kind)
    if found is None:
        found = default
    if found is None:
        raise ConfigError(f"config.json: {key} is missing")
    return found


def size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return `config[key]`, a number of things, or `default` where it is absent or null. Raises ConfigError below 1."""
    found = value(config, key, int, default)
    if found < 1:
        raise ConfigError(f"config.json: {key} should be at least 1, found {found}")
    return found


def optional(config: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """Return `config[key]`, None where it is absent or null. Raises ConfigError."""
    found = config.get(key)
    if kind is float and type(found) is int:
        found = float(found)
    if found is not None and type(found) is not kind:
        raise ConfigError(f"config.json: {key} should be of type {kind.__name__}, found {found!r}")
    return found


def unless_null(config: Mapping[str, Any], key: str, kind: type[T], usual: T | None) -> T | None:
    """Return `config[key]`: `usual` where it is absent, None where it is null. Raises ConfigError."""
    return optional(config, key, kind) if key in config else usual


def overlaid(config: Mapping[str, Any], values: dict[str, Any]) -> Mapping[str, Any]:
    """Return `config` with some `values` in place of its own; nothing else of it is read until somebody asks."""
    return ChainMap(values, config)  # type: ignore[arg-type]


def require(config: Mapping[str, Any], key: str, allowed: Any) -> None:
    """Raise ConfigError unless `config[key]` is absent, null or `allowed`: for what would silently change the model."""
    if config.get(key) is not None and config[key] != allowed:
        raise ConfigError(f"config.json: {key} = {config[key]!r} is not supported, only {allowed!r}")
