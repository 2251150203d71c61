"""Tiny models of every family with random weights, as Hugging Face folders, and what `transformers` computes with them."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from twostep.core.request import Request
from twostep.engine.batch import Draw
from twostep.engine.sampler import sample

SHAPE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": None,
    "eos_token_id": 1,
}
FACTORS = {
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.5, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 9.0],
}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **FACTORS}
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2, windows": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=20, max_window_layers=2),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32),
    "qwen3, biases": Qwen3Config(**SHAPE, head_dim=24, attention_bias=True, tie_word_embeddings=True),
    "mistral": MistralConfig(**SHAPE, sliding_window=None, head_dim=24),
    "mistral, windows": MistralConfig(**SHAPE, sliding_window=33),
    "gemma2": Gemma2Config(**SHAPE, head_dim=32, query_pre_attn_scalar=24, sliding_window=20),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=32, query_pre_attn_scalar=24, sliding_window=20, sliding_window_pattern=3),
    "gemma3, told by layer": Gemma3TextConfig(
        **SHAPE,
        head_dim=8,
        layer_types=["full_attention", "sliding_attention"] * 2,
        sliding_window=40,
        rope_parameters=LOCAL_AND_GLOBAL,
        final_logit_softcapping=3.0,
        attention_bias=True,
    ),
    "phi3": Phi3Config(**SHAPE, sliding_window=50),
    "phi3, partial longrope": Phi3Config(
        **SHAPE, partial_rotary_factor=0.75, rope_parameters=LONGROPE, original_max_position_embeddings=640
    ),
}
"""A family's next variant, or the next family, is one entry."""


class Oracle:
    """What `transformers` computes with the model in a folder, every token from all before it, in `dtype`."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.folder = folder
        # Of its kinds of attention, only this one caps scores.
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return float32 [token, vocab]."""
        logits: Tensor = self._model(torch.tensor([tokens]), use_cache=False).logits[0].float()
        return logits

    def answer(self, request: Request) -> list[int]:
        """Return the tokens that our sampler draws from these logits."""
        tokens = list(request.prompt)
        for index in range(request.stop.max_tokens):
            tokens.append(int(sample(self.logits(tokens)[-1:], [Draw(request.sampling, index)])))
        return tokens[len(request.prompt) :]


def write_tiny(folder: Path, family: str, dtype: torch.dtype = torch.float32, **saving: Any) -> Path:
    """Write a model into `folder`, its weights as `dtype`. All are random, so that none can be left out unnoticed."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(FAMILIES[family]))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    model.to(dtype).save_pretrained(folder, **saving)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder
