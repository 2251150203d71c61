"""Qwen3: Qwen2 with each head's queries and keys normalised, and without its biases."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from twostep.engine.layers.attention import Attention
from twostep.engine.models.config_values import require, value
from twostep.engine.models.decoder import Decoder, pre_norm_decoder
from twostep.engine.models.layer_values import attention_shape, norm_of
from twostep.engine.models.qwen2 import qwen_kinds


def qwen3(config: Mapping[str, Any]) -> Decoder:
    require(config, "hidden_act", "silu")
    shape = attention_shape(config, head_dim=128)
    bias = value(config, "attention_bias", bool, False)
    attention = partial(Attention, shape, qkv_bias=bias, out_bias=bias, norm=norm_of(config))
    return pre_norm_decoder(config, shape, qwen_kinds(config, shape), attention)
