"""Which model families this engine knows, by the architecture's name in `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from twostep.core.errors import ConfigError
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.config_values import require
from twostep.engine.models.gemma2 import gemma2
from twostep.engine.models.gemma3 import gemma3
from twostep.engine.models.llama import llama
from twostep.engine.models.mistral import mistral
from twostep.engine.models.phi3 import phi3
from twostep.engine.models.qwen2 import qwen2
from twostep.engine.models.qwen3 import qwen3
from twostep.engine.models.read_config import ReadConfig

ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Any]], CausalLM]] = {
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Phi3ForCausalLM": phi3,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}
"""Each builds the model that a `config.json` describes, with whatever weights, and raises ConfigError, naming the key."""


def build_model(config: Mapping[str, Any]) -> CausalLM:
    """Build the model that `config` describes, with whatever weights. Raises ConfigError for an unknown architecture."""
    config = ReadConfig(config)
    name = (config.get("architectures") or ["none"])[0]
    if name not in ARCHITECTURES:
        raise ConfigError(f"config.json: architecture {name} is not supported, only {', '.join(sorted(ARCHITECTURES))}")
    require(config, "is_causal", True)
    model = ARCHITECTURES[name](config)
    model.facts = replace(model.facts, config=config.digest())
    return model
