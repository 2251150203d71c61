"""Which model families this engine knows, by the architecture's name in `config.json`."""

from collections.abc import Mapping
from typing import Any

from twostep.core.errors import ConfigError
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.llama import LlamaForCausalLM

ARCHITECTURES: Mapping[str, type[CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
}


def build_model(config: Mapping[str, Any]) -> CausalLM:
    """Build the model that `config` describes, with whatever weights. Raises ConfigError for an unknown architecture."""
    names = config.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise ConfigError(f"config.json: architecture {names[0]} is not supported, only {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[names[0]].from_config(config)
