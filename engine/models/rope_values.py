"""Reads how a model turns positions out of its `config.json`, in the older form and in the newer one."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from twostep.core.errors import ConfigError
from twostep.engine.layers.rope import LinearScaling, Llama3Scaling, LongRopeScaling, RopeConfig
from twostep.engine.models.config_values import optional, size, value

Settings = Mapping[str, Any]
MakeRope = Callable[[Settings, int, float], RopeConfig]


def rope_config(config: Settings, head_dim: int) -> RopeConfig:
    """Return the rotation of whole heads. Raises ConfigError."""
    rope = partial_rope_config(config, head_dim)
    if rope.dim != head_dim:
        raise ConfigError("config.json: this family's heads are turned as a whole: partial_rotary_factor is not supported")
    return rope


def partial_rope_config(config: Settings, head_dim: int) -> RopeConfig:
    """Return a rotation that may leave the last part of each head as it is. Raises ConfigError."""
    settings = _settings(config)
    kind = str(settings.get("rope_type", settings.get("type", "default")))
    if kind not in _KINDS:
        raise ConfigError(f"config.json: rope type {kind!r} is not supported, only {', '.join(sorted(_KINDS))}")
    make, keys = _KINDS[kind]
    unknown = sorted(settings.keys() - _ALWAYS - keys)
    if unknown:
        raise ConfigError(f"config.json: {unknown[0]} is not supported for rope type {kind!r}")
    dim = int(head_dim * value(settings, "partial_rotary_factor", float))
    return make(settings, dim, value(settings, "rope_theta", float))


def _settings(config: Settings) -> dict[str, Any]:
    """Return `rope_scaling`, as older folders name it, else `rope_parameters`; what they leave out stands beside them."""
    settings = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    settings.setdefault("rope_theta", value(config, "rope_theta", float, 10000.0))
    settings.setdefault("partial_rotary_factor", value(config, "partial_rotary_factor", float, 1.0))
    return settings | {key: config[key] for key in _LENGTHS if config.get(key) is not None}


def _default(settings: Settings, dim: int, theta: float) -> RopeConfig:
    del settings
    return RopeConfig(dim, theta)


def _linear(settings: Settings, dim: int, theta: float) -> RopeConfig:
    return RopeConfig(dim, theta, LinearScaling(value(settings, "factor", float)))


def _llama3(settings: Settings, dim: int, theta: float) -> RopeConfig:
    scaling = Llama3Scaling(
        factor=value(settings, "factor", float),
        low_freq_factor=value(settings, "low_freq_factor", float),
        high_freq_factor=value(settings, "high_freq_factor", float),
        original_max_position_embeddings=_trained_tokens(settings),
    )
    return RopeConfig(dim, theta, scaling)


def _longrope(settings: Settings, dim: int, theta: float) -> RopeConfig:
    trained, factors = _trained_tokens(settings), tuple(map(float, settings.get("short_factor", ())))
    if len(factors) != dim // 2:
        raise ConfigError(f"config.json: short_factor should hold {dim // 2} numbers, found {len(factors)}")
    stretch = optional(settings, "factor", float) or size(settings, "max_position_embeddings") / trained
    magnitude = math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 else 1.0
    return RopeConfig(dim, theta, LongRopeScaling(factors, trained), optional(settings, "attention_factor", float) or magnitude)


def _trained_tokens(settings: Settings) -> int:
    return size(settings, "original_max_position_embeddings", size(settings, "max_position_embeddings"))


_LENGTHS = {"max_position_embeddings", "original_max_position_embeddings"}
_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_LENGTHS}
_LONGROPE = (_longrope, {"short_factor", "long_factor", "factor", "attention_factor"})
_KINDS: Mapping[str, tuple[MakeRope, set[str]]] = {
    "default": (_default, set()),
    "linear": (_linear, {"factor"}),
    "llama3": (_llama3, {"factor", "low_freq_factor", "high_freq_factor"}),
    "longrope": _LONGROPE,
    "su": _LONGROPE,
}
