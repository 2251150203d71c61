"""The Llama family: also SmolLM2, TinyLlama, Llama 2 and 3."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from twostep.engine.layers.attention import Attention
from twostep.engine.models.config_values import require, value
from twostep.engine.models.decoder import Decoder, pre_norm_decoder
from twostep.engine.models.layer_values import attention_shape, kinds_alike
from twostep.engine.models.rope_values import rope_config


def llama(config: Mapping[str, Any]) -> Decoder:
    require(config, "hidden_act", "silu")
    shape = attention_shape(config)
    kinds = kinds_alike(config, rope_config(config, shape.head_dim))
    bias = value(config, "attention_bias", bool, False)
    attention = partial(Attention, shape, qkv_bias=bias, out_bias=bias)
    return pre_norm_decoder(config, shape, kinds, attention, mlp_bias=value(config, "mlp_bias", bool, False))
