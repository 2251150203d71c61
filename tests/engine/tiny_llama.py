"""Tiny Llama models with random weights, as Hugging Face folders, and what `transformers` computes with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {"tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
    "one KV head per head": {"num_key_value_heads": 6},
    "one KV head for all": {"num_key_value_heads": 1},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 16},
}


@dataclass(frozen=True, slots=True)
class TinyLlama:
    folder: Path
    oracle: LlamaForCausalLM

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """Return what `transformers` computes, float32 [token, vocab]."""
        return self.oracle(torch.tensor([tokens])).logits[0].float()


def write_tiny_llama(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> TinyLlama:
    """Write a model into `folder`. Every parameter is random, so that none can be left out unnoticed."""
    torch.manual_seed(0)
    oracle = LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))).to(dtype).eval()
    for name, parameter in oracle.named_parameters():
        scale, centre = (0.2, 1.0) if "norm" in name else (0.15, 0.0)
        torch.nn.init.normal_(parameter, centre, scale)
    oracle.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return TinyLlama(folder, oracle)
