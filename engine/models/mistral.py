"""Mistral: Llama with a window over all layers, where one is set."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from twostep.engine.layers.attention import Attention
from twostep.engine.models.config_values import require, unless_null
from twostep.engine.models.decoder import Decoder, pre_norm_decoder
from twostep.engine.models.layer_values import attention_shape, kinds_alike
from twostep.engine.models.rope_values import rope_config


def mistral(config: Mapping[str, Any]) -> Decoder:
    require(config, "hidden_act", "silu")
    require(config, "layer_types", None)
    shape = attention_shape(config)
    window = unless_null(config, "sliding_window", int, 4096)
    kinds = kinds_alike(config, rope_config(config, shape.head_dim), window)
    return pre_norm_decoder(config, shape, kinds, partial(Attention, shape))
