"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and windows where they are switched on."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from twostep.engine.layers.attention import Attention, AttentionShape
from twostep.engine.layers.layer_kind import LayerKind
from twostep.engine.models.config_values import require, unless_null, value
from twostep.engine.models.decoder import Decoder, pre_norm_decoder
from twostep.engine.models.layer_values import FULL, SLIDING, attention_shape, kinds_by_type, layer_types, num_layers
from twostep.engine.models.rope_values import rope_config


def qwen2(config: Mapping[str, Any]) -> Decoder:
    require(config, "hidden_act", "silu")
    shape = attention_shape(config)
    return pre_norm_decoder(config, shape, qwen_kinds(config, shape), partial(Attention, shape, qkv_bias=True))


def qwen_kinds(config: Mapping[str, Any], shape: AttentionShape) -> list[LayerKind]:
    """Return the layers' kinds: where windows are switched on, the layers from `max_window_layers` on have one."""
    is_windowed = value(config, "use_sliding_window", bool, False)
    window = unless_null(config, "sliding_window", int, 4096) if is_windowed else None
    num_full = num_layers(config) if window is None else value(config, "max_window_layers", int, 28)
    types = layer_types(config, [FULL if layer < num_full else SLIDING for layer in range(num_layers(config))])
    rope = rope_config(config, shape.head_dim)
    return kinds_by_type(config, types, {FULL: rope, SLIDING: rope}, window)
