"""Reads values out of a model's `config.json`, with errors that name the key."""

from collections.abc import Mapping
from typing import Any, TypeVar

from twostep.core.errors import ConfigError
from twostep.engine.layers.rope import LinearScaling, Llama3Scaling, RopeConfig

T = TypeVar("T", int, float, bool, str)


def value(config: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return `config[key]`, or `default` where it is absent or null. Raises ConfigError."""
    found = config.get(key)
    if found is None:
        if default is None:
            raise ConfigError(f"config.json: {key} is missing")
        return default
    if kind is float and isinstance(found, int):
        found = float(found)
    if type(found) is not kind:
        raise ConfigError(f"config.json: {key} should be of type {kind.__name__}, found {found!r}")
    return found


def require(config: Mapping[str, Any], key: str, allowed: Any) -> None:
    """Raise ConfigError unless `config[key]` is absent or `allowed`: for what would silently change the model."""
    if key in config and config[key] != allowed:
        raise ConfigError(f"config.json: {key} = {config[key]!r} is not supported, only {allowed!r}")


def rope_config(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read the rotation, from `rope_parameters` or from the older `rope_theta` and `rope_scaling`."""
    rope = {"rope_theta": config.get("rope_theta", 10000.0)} | (config.get("rope_scaling") or {})
    rope |= config.get("rope_parameters") or {}
    require(rope, "partial_rotary_factor", 1.0)
    require(config, "partial_rotary_factor", 1.0)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    return RopeConfig(dim=head_dim, theta=value(rope, "rope_theta", float), scaling=_scaling(rope, kind))


def _scaling(rope: Mapping[str, Any], kind: str) -> Llama3Scaling | LinearScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(value(rope, "factor", float))
    if kind == "llama3":
        return Llama3Scaling(
            factor=value(rope, "factor", float),
            low_freq_factor=value(rope, "low_freq_factor", float),
            high_freq_factor=value(rope, "high_freq_factor", float),
            original_max_position_embeddings=value(rope, "original_max_position_embeddings", int),
        )
    raise ConfigError(f"config.json: rope type {kind!r} is not supported, only default, linear and llama3")
