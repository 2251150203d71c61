"""What Gemma 2 and 3 have in common: norms around both blocks, scaled embeddings, soft caps, local and global layers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from twostep.engine.kernels.reference import Score, gelu_and_multiply
from twostep.engine.layers.attention import Attention, AttentionShape
from twostep.engine.layers.decoder_layer import MakeNorm, SandwichNormLayer
from twostep.engine.layers.embedding import Embedding
from twostep.engine.layers.layer_kind import LayerKind
from twostep.engine.layers.mlp import GatedMLP
from twostep.engine.layers.norm import RMSNormFromOne
from twostep.engine.layers.rope import RopeConfig
from twostep.engine.models.config_values import require, size, unless_null, value
from twostep.engine.models.decoder import Decoder
from twostep.engine.models.layer_values import FULL, SLIDING, kinds_by_type, layer_types, model_facts, num_layers


def gemma_kinds(config: Mapping[str, Any], ropes: Mapping[str, RopeConfig], period: int) -> list[LayerKind]:
    """Return the layers' kinds: the last of each `period` sees everything, the others have a window."""
    usual = [SLIDING if layer % period else FULL for layer in range(1, num_layers(config) + 1)]
    return kinds_by_type(config, layer_types(config, usual), ropes, unless_null(config, "sliding_window", int, 4096))


def gemma_norm(config: Mapping[str, Any]) -> MakeNorm:
    return partial(RMSNormFromOne, eps=value(config, "rms_norm_eps", float))


def gemma_decoder(
    config: Mapping[str, Any],
    shape: AttentionShape,
    kinds: Sequence[LayerKind],
    *,
    score_cap: float | None,
    logit_cap: float | None,
    head_norm: MakeNorm | None = None,
) -> Decoder:
    """Put together a Gemma with layers of these `kinds`."""
    require(config, "hidden_activation", "gelu_pytorch_tanh")
    require(config, "use_bidirectional_attention", False)
    facts, norm, bias = model_facts(config, shape, kinds), gemma_norm(config), value(config, "attention_bias", bool, False)
    score = Score(value(config, "query_pre_attn_scalar", float, 256.0) ** -0.5, score_cap)
    inner_dim = size(config, "intermediate_size")

    def layer(kind: LayerKind) -> nn.Module:
        attention = Attention(shape, kind, qkv_bias=bias, out_bias=bias, norm=head_norm, score=score)
        return SandwichNormLayer(attention, GatedMLP(shape.dim, inner_dim, activate=gelu_and_multiply), norm)

    return Decoder(
        facts,
        embedding=Embedding(facts.vocab_size, shape.dim, scale=shape.dim**0.5),
        layers=map(layer, kinds),
        norm=norm(shape.dim),
        is_tied=value(config, "tie_word_embeddings", bool, True),
        logit_cap=logit_cap,
    )
