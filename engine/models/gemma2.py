"""Gemma 2: attention scores and logits are softly capped."""

from collections.abc import Mapping
from typing import Any

from twostep.engine.models.config_values import unless_null
from twostep.engine.models.decoder import Decoder
from twostep.engine.models.gemma import gemma_decoder, gemma_kinds
from twostep.engine.models.layer_values import FULL, SLIDING, attention_shape
from twostep.engine.models.rope_values import rope_config


def gemma2(config: Mapping[str, Any]) -> Decoder:
    shape = attention_shape(config, head_dim=256)
    rope = rope_config(config, shape.head_dim)
    return gemma_decoder(
        config,
        shape,
        gemma_kinds(config, {FULL: rope, SLIDING: rope}, period=2),
        score_cap=unless_null(config, "attn_logit_softcapping", float, 50.0),
        logit_cap=unless_null(config, "final_logit_softcapping", float, 30.0),
    )
