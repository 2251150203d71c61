"""Reads the shapes of a model's layers, and what kind each of them is, out of its `config.json`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from twostep.core.errors import ConfigError
from twostep.engine.layers.attention import AttentionShape
from twostep.engine.layers.layer_kind import LayerKind
from twostep.engine.layers.norm import RMSNorm
from twostep.engine.layers.rope import LongRopeScaling, RopeConfig
from twostep.engine.models.causal_lm import ModelFacts
from twostep.engine.models.config_values import size, value

FULL, SLIDING = "full_attention", "sliding_attention"
Config = Mapping[str, Any]


def attention_shape(config: Config, head_dim: int | None = None) -> AttentionShape:
    """Return the shape of every layer's attention; `head_dim` is the family's, unset: what is left for each head."""
    dim, num_heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    num_kv_heads = size(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"config.json: num_attention_heads = {num_heads} is no multiple of {num_kv_heads} key-value heads")
    return AttentionShape(dim, num_heads, num_kv_heads, size(config, "head_dim", head_dim or dim // num_heads))


def num_layers(config: Config) -> int:
    return size(config, "num_hidden_layers")


def layer_types(config: Config, usual: Sequence[str]) -> Sequence[str]:
    """Return each layer's type: what `layer_types` says, or else the family's `usual` ones. Raises ConfigError."""
    types = config.get("layer_types") or usual
    if len(types) != num_layers(config):
        raise ConfigError(f"config.json: layer_types names {len(types)} layers, num_hidden_layers is {num_layers(config)}")
    unknown = sorted(set(types) - {FULL, SLIDING})
    if unknown:
        raise ConfigError(f"config.json: layer type {unknown[0]!r} is not supported, only {FULL} and {SLIDING}")
    return types


def kinds_by_type(config: Config, types: Sequence[str], ropes: Mapping[str, RopeConfig], window: int | None) -> list[LayerKind]:
    """Return each layer's kind; the sliding ones have the `window`. Raises ConfigError where there is none."""
    if window is None and SLIDING in types:
        raise ConfigError("config.json: layer_types has sliding_attention, and there is no sliding_window")
    sliding = _felt(config, window)
    return [LayerKind(ropes[kind], sliding if kind == SLIDING else None) for kind in types]


def kinds_alike(config: Config, rope: RopeConfig, window: int | None = None) -> list[LayerKind]:
    """Return the kinds of layers that are all the same."""
    return [LayerKind(rope, _felt(config, window))] * num_layers(config)


def _felt(config: Config, window: int | None) -> int | None:
    """Return the window, or None where no sequence outgrows it: a mask that hides nothing is not made."""
    return window if window is not None and window < size(config, "max_position_embeddings") else None


def norm_of(config: Config) -> partial[RMSNorm]:
    """Return what makes this model's normalisations."""
    return partial(RMSNorm, eps=value(config, "rms_norm_eps", float))


def model_facts(config: Config, shape: AttentionShape, kinds: Sequence[LayerKind]) -> ModelFacts:
    limits = [kind.rope.scaling.max_tokens for kind in kinds if isinstance(kind.rope.scaling, LongRopeScaling)]
    return ModelFacts(
        kinds=tuple(kinds),
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=size(config, "vocab_size"),
        max_tokens=min([size(config, "max_position_embeddings"), *limits]),
    )
