"""Phi-3 and Phi-4: Llama with joined projections, and heads that may be turned only in part."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from twostep.engine.layers.attention import Attention
from twostep.engine.models.config_values import optional, require
from twostep.engine.models.decoder import Decoder, pre_norm_decoder
from twostep.engine.models.layer_values import attention_shape, kinds_alike
from twostep.engine.models.rope_values import partial_rope_config


def phi3(config: Mapping[str, Any]) -> Decoder:
    require(config, "hidden_act", "silu")
    shape = attention_shape(config)
    kinds = kinds_alike(config, partial_rope_config(config, shape.head_dim), optional(config, "sliding_window", int))
    return pre_norm_decoder(config, shape, kinds, partial(Attention, shape), packed={})
