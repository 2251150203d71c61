"""The text of Gemma 3: each head's queries and keys are normalised, local and global layers turn positions differently."""

from collections.abc import Mapping
from typing import Any

from twostep.core.errors import ConfigError
from twostep.engine.layers.rope import RopeConfig
from twostep.engine.models.config_values import optional, overlaid, require, size, value
from twostep.engine.models.decoder import Decoder
from twostep.engine.models.gemma import gemma_decoder, gemma_kinds, gemma_norm
from twostep.engine.models.layer_values import FULL, SLIDING, attention_shape
from twostep.engine.models.rope_values import rope_config


def gemma3(config: Mapping[str, Any]) -> Decoder:
    require(config, "attn_logit_softcapping", None)
    shape = attention_shape(config, head_dim=256)
    period = size(config, "sliding_window_pattern", size(config, "_sliding_window_pattern", 6))
    return gemma_decoder(
        config,
        shape,
        gemma_kinds(config, _ropes(config, shape.head_dim), period),
        score_cap=None,
        logit_cap=optional(config, "final_logit_softcapping", float),
        head_norm=gemma_norm(config),
    )


def _ropes(config: Mapping[str, Any], head_dim: int) -> dict[str, RopeConfig]:
    """Read the rotations of both types: in groups, or in the older form, whose scaling is for global layers alone."""
    groups = config.get("rope_parameters") or {}
    if groups.keys() - {FULL, SLIDING}:
        raise ConfigError(f"config.json: rope_parameters should hold {FULL} and {SLIDING}, found {', '.join(sorted(groups))}")
    local = {
        "rope_scaling": None,
        "rope_parameters": groups.get(SLIDING),
        "rope_theta": value(config, "rope_local_base_freq", float, 10000.0),
    }
    whole = {"rope_parameters": groups.get(FULL), "rope_theta": value(config, "rope_theta", float, 1000000.0)}
    return {
        FULL: rope_config(overlaid(config, whole), head_dim),
        SLIDING: rope_config(overlaid(config, local), head_dim),
    }
