"""A decoder's layers: attention and feed-forward block, each added to what goes by it, and where they are normalised."""

from collections.abc import Callable

from torch import Tensor, nn

from twostep.engine.layers.attention import Attention, LayerInputs
from twostep.engine.layers.mlp import GatedMLP

MakeNorm = Callable[[int], nn.Module]
"""Makes a normalisation of vectors of a size."""


class PreNormLayer(nn.Module):
    """Each block's input is normalised (Llama and most others)."""

    def __init__(self, attention: Attention, mlp: GatedMLP, norm: MakeNorm) -> None:
        super().__init__()
        dim = attention.shape.dim
        self.input_layernorm = norm(dim)
        self.self_attn = attention
        self.post_attention_layernorm = norm(dim)
        self.mlp = mlp

    def forward(self, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        attended: Tensor = hidden + self.self_attn(self.input_layernorm(hidden), inputs, pool)
        fed: Tensor = attended + self.mlp(self.post_attention_layernorm(attended))
        return fed


class SandwichNormLayer(nn.Module):
    """Each block's input and output are normalised (Gemma 2 and 3)."""

    def __init__(self, attention: Attention, mlp: GatedMLP, norm: MakeNorm) -> None:
        super().__init__()
        dim = attention.shape.dim
        self.input_layernorm = norm(dim)
        self.self_attn = attention
        self.post_attention_layernorm = norm(dim)
        self.pre_feedforward_layernorm = norm(dim)
        self.mlp = mlp
        self.post_feedforward_layernorm = norm(dim)

    def forward(self, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        attended: Tensor = hidden + self.post_attention_layernorm(self.self_attn(self.input_layernorm(hidden), inputs, pool))
        fed: Tensor = attended + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(attended)))
        return fed
