"""A decoder-only model put together from a family's parts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from twostep.engine.forward_batch import ForwardBatch
from twostep.engine.kernels.reference import soft_cap
from twostep.engine.layers.attention import Attention, AttentionShape, LayerInputs
from twostep.engine.layers.decoder_layer import PreNormLayer
from twostep.engine.layers.embedding import Embedding
from twostep.engine.layers.layer_kind import LayerKind
from twostep.engine.layers.mlp import GatedMLP
from twostep.engine.layers.rope import Rope
from twostep.engine.models.causal_lm import ModelFacts
from twostep.engine.models.config_values import size, value
from twostep.engine.models.layer_values import model_facts, norm_of

SPLIT: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""How most folders hold the projections that are one matrix here."""


class Decoder(nn.Module):
    """Implements `CausalLM`. Where `is_tied`, the embedding is the head too; logits stay below `logit_cap`."""

    def __init__(
        self,
        facts: ModelFacts,
        *,
        embedding: Embedding,
        layers: Iterable[nn.Module],
        norm: nn.Module,
        is_tied: bool,
        packed: Mapping[str, tuple[str, ...]] = SPLIT,
        logit_cap: float | None = None,
    ) -> None:
        super().__init__()
        self.facts, self.packed, self.logit_cap = facts, packed, logit_cap
        self.ropes = [Rope(config) for config in {kind.rope for kind in facts.kinds}]
        self.embed_tokens = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.lm_head = None if is_tied else nn.Linear(embedding.dim, facts.vocab_size, bias=False)
        self.ignored = frozenset({"lm_head.weight"} if is_tied else ())

    def as_module(self) -> nn.Module:
        return self

    def begin(self, batch: ForwardBatch) -> tuple[Tensor, LayerInputs]:
        hidden: Tensor = self.embed_tokens(batch.tokens)
        rotations = {rope.config: rope.angles(batch.positions, hidden.dtype) for rope in self.ropes}
        return hidden, LayerInputs(batch, rotations)

    def run_layer(self, layer: int, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        after: Tensor = self.layers[layer](hidden, inputs, pool)
        return after

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return soft_cap(functional.linear(self.norm(hidden), head.weight), self.logit_cap)


def pre_norm_decoder(
    config: Mapping[str, Any],
    shape: AttentionShape,
    kinds: Iterable[LayerKind],
    attention: Callable[[LayerKind], Attention],
    *,
    mlp_bias: bool = False,
    packed: Mapping[str, tuple[str, ...]] = SPLIT,
) -> Decoder:
    """Put together a decoder as Llama is built, with this `attention` in a layer of each kind."""
    facts, norm = model_facts(config, shape, list(kinds)), norm_of(config)
    inner_dim = size(config, "intermediate_size")
    return Decoder(
        facts,
        embedding=Embedding(facts.vocab_size, shape.dim),
        layers=[PreNormLayer(attention(kind), GatedMLP(shape.dim, inner_dim, bias=mlp_bias), norm) for kind in facts.kinds],
        norm=norm(shape.dim),
        is_tied=value(config, "tie_word_embeddings", bool, False),
        packed=packed,
    )
