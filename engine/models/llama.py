"""The Llama family: also SmolLM2, TinyLlama, Llama 2 and 3."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from twostep.engine.layers.attention import Attention, AttentionShape, LayerInputs
from twostep.engine.layers.mlp import GatedMLP
from twostep.engine.layers.norm import RMSNorm
from twostep.engine.layers.rope import Rope
from twostep.engine.models.causal_lm import ModelFacts
from twostep.engine.models.config_values import require, rope_config, value
from twostep.engine.step_plan import StepPlan


class LlamaLayer(nn.Module):
    def __init__(self, config: Mapping[str, Any], shape: AttentionShape) -> None:
        super().__init__()
        eps = value(config, "rms_norm_eps", float)
        attention_bias = value(config, "attention_bias", bool, False)
        self.input_layernorm = RMSNorm(shape.dim, eps)
        self.self_attn = Attention(shape, qkv_bias=attention_bias, out_bias=attention_bias)
        self.post_attention_layernorm = RMSNorm(shape.dim, eps)
        self.mlp = GatedMLP(shape.dim, value(config, "intermediate_size", int), bias=value(config, "mlp_bias", bool, False))

    def forward(self, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        attended: Tensor = hidden + self.self_attn(self.input_layernorm(hidden), inputs, pool)
        fed: Tensor = attended + self.mlp(self.post_attention_layernorm(attended))
        return fed


class LlamaForCausalLM(nn.Module):
    """Implements `CausalLM`."""

    packed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        require(config, "hidden_act", "silu")
        shape = _attention_shape(config)
        rope = rope_config(config, shape.head_dim)
        self.facts = ModelFacts(
            num_layers=value(config, "num_hidden_layers", int),
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab_size=value(config, "vocab_size", int),
            max_tokens=value(config, "max_position_embeddings", int),
            rope=rope.description,
        )
        self.rope = Rope(rope)
        # Given a table, it draws no random one, which would load torch's compiler: seconds for nothing.
        table = torch.empty(self.facts.vocab_size, shape.dim)
        self.embed_tokens = nn.Embedding(self.facts.vocab_size, shape.dim, _weight=table)
        self.layers = nn.ModuleList(LlamaLayer(config, shape) for _ in range(self.facts.num_layers))
        self.norm = RMSNorm(shape.dim, value(config, "rms_norm_eps", float))
        is_tied = value(config, "tie_word_embeddings", bool, False)
        self.lm_head = None if is_tied else nn.Linear(shape.dim, self.facts.vocab_size, bias=False)
        self.ignored = frozenset({"lm_head.weight"} if is_tied else ())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(config)

    def as_module(self) -> nn.Module:
        return self

    def begin(self, plan: StepPlan) -> tuple[Tensor, LayerInputs]:
        hidden: Tensor = self.embed_tokens(plan.tokens)
        return hidden, LayerInputs(plan, *self.rope.angles(plan.positions, hidden.dtype))

    def run_layer(self, layer: int, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        after: Tensor = self.layers[layer](hidden, inputs, pool)
        return after

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(self.norm(hidden), head.weight)


def _attention_shape(config: Mapping[str, Any]) -> AttentionShape:
    dim, num_heads = value(config, "hidden_size", int), value(config, "num_attention_heads", int)
    return AttentionShape(
        dim=dim,
        num_heads=num_heads,
        num_kv_heads=value(config, "num_key_value_heads", int, num_heads),
        head_dim=value(config, "head_dim", int, dim // num_heads),
    )
