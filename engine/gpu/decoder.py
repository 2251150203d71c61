"""A decoder's layers as calls of kernels: they compute what its modules compute in torch, with its modules' weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from twostep.engine.kernels.kernel_set import HeadNorms, KernelSet
from twostep.engine.kernels.reference import Score, gelu_and_multiply, silu_and_multiply, soft_cap
from twostep.engine.layers.attention import Attention
from twostep.engine.layers.decoder_layer import PreNormLayer, SandwichNormLayer
from twostep.engine.layers.mlp import GatedMLP
from twostep.engine.layers.norm import RMSNorm, RMSNormFromOne
from twostep.engine.layers.rope import RopeConfig
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.decoder import Decoder

HEAD_DIM_UNIT, MAX_HEAD_DIM = 16, 256
Layer = PreNormLayer | SandwichNormLayer
Norm = RMSNorm | RMSNormFromOne


def covered(model: CausalLM) -> Decoder | None:
    """Return the model if the kernels can compute all of it, else None."""
    if not isinstance(model, Decoder) or model.facts.head_dim % HEAD_DIM_UNIT or model.facts.head_dim > MAX_HEAD_DIM:
        return None
    is_known = all(
        isinstance(layer, Layer) and layer.mlp.activate in (silu_and_multiply, gelu_and_multiply) for layer in model.layers
    )
    return model if is_known else None


class Attend(Protocol):
    """Attends from the queries of a step's rows, `query` and `out` [row, head, dim], over a layer's pool."""

    def __call__(self, query: Tensor, pool: Tensor, out: Tensor, *, score: Score, window: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class StepRows:
    """What all layers of a step share: angles of each row's position by rotation, the slots of its KV, how to attend."""

    rotations: Mapping[RopeConfig, tuple[Tensor, Tensor]]
    slots: Tensor
    attend: Attend


@dataclass(slots=True)
class Hidden:
    """What goes by the layers, [row, dim]: `residual`, and what the next normalisation is still to add to it."""

    residual: Tensor
    pending: Tensor | None = None

    def rows(self, rows: Tensor) -> "Hidden":
        return Hidden(self.residual[rows], None if self.pending is None else self.pending[rows])


class GpuDecoder:
    """Computes with the modules' own weights. `pools` [layer, block, kv_head, token, k|v, dim] are the KV cache."""

    def __init__(self, model: Decoder, kernels: KernelSet, pools: Tensor, *, max_tokens: int) -> None:
        self.model = model
        self._kernels = kernels
        self._pools = pools
        positions = torch.arange(max_tokens, device=pools.device)
        # Rounded as the modules round them; one look-up a step instead of a dozen small operations.
        self._angles = {rope.config: _squeezed(rope.angles(positions, pools.dtype)) for rope in model.ropes}
        self._head_norms = [_head_norms(layer.self_attn) for layer in model.layers if isinstance(layer, Layer)]

    def begin(self, tokens: Tensor, positions: Tensor) -> tuple[Hidden, Mapping[RopeConfig, tuple[Tensor, Tensor]]]:
        """Return the embedded tokens [row], and the angles of their positions [row]."""
        rotations = {config: (cos[positions], sin[positions]) for config, (cos, sin) in self._angles.items()}
        return Hidden(self.model.embed_tokens(tokens)), rotations

    def run_layer(self, number: int, hidden: Hidden, rows: StepRows) -> None:
        """Compute one layer, writing its KV; changes `hidden`."""
        layer = self.model.layers[number]
        if isinstance(layer, PreNormLayer):
            attended = self._attention(number, layer.self_attn, self._next(hidden, layer.input_layernorm), rows)
            hidden.pending = attended
            hidden.pending = self._mlp(layer.mlp, self._next(hidden, layer.post_attention_layernorm))
        else:
            assert isinstance(layer, SandwichNormLayer)
            attended = self._attention(number, layer.self_attn, self._next(hidden, layer.input_layernorm), rows)
            self._add(hidden, attended, layer.post_attention_layernorm)
            fed = self._mlp(layer.mlp, self._next(hidden, layer.pre_feedforward_layernorm))
            self._add(hidden, fed, layer.post_feedforward_layernorm)

    def logits(self, hidden: Hidden) -> Tensor:
        """Return [row, vocab] for the rows that went through all layers."""
        head = self.model.embed_tokens if self.model.lm_head is None else self.model.lm_head
        return soft_cap(functional.linear(self._next(hidden, self.model.norm), head.weight), self.model.logit_cap)

    def _attention(self, number: int, attention: Attention, x: Tensor, rows: StepRows) -> Tensor:
        kind, num_heads, pool = attention.kind, attention.shape.num_heads, self._pools[number]
        qkv = _linear(attention.qkv_proj, x).view(x.shape[0], -1, attention.shape.head_dim)
        cos, sin = rows.rotations[kind.rope]
        self._kernels.rotate_and_store(qkv, cos, sin, rows.slots, pool, self._head_norms[number])
        out = qkv.new_empty((x.shape[0], num_heads, attention.shape.head_dim))
        rows.attend(qkv[:, :num_heads], pool, out, score=attention.score, window=kind.window)
        return _linear(attention.o_proj, out.view(x.shape[0], -1))

    def _mlp(self, mlp: GatedMLP, x: Tensor) -> Tensor:
        both = _linear(mlp.gate_up_proj, x)
        inner = both.new_empty((both.shape[0], both.shape[1] // 2))
        if mlp.activate is silu_and_multiply:
            self._kernels.silu_and_multiply(both, inner)
        else:
            self._kernels.gelu_and_multiply(both, inner)
        return _linear(mlp.down_proj, inner)

    def _next(self, hidden: Hidden, norm: nn.Module) -> Tensor:
        """Add what is pending, and return the sum normalised."""
        assert isinstance(norm, Norm)
        from_one = isinstance(norm, RMSNormFromOne)
        if hidden.pending is None:
            out = torch.empty_like(hidden.residual)
            self._kernels.rms_norm(hidden.residual, norm.weight, out, eps=norm.eps, from_one=from_one)
            return out
        out, hidden.pending = hidden.pending, None
        self._kernels.add_rms_norm(out, hidden.residual, norm.weight, out, eps=norm.eps, from_one=from_one)
        return out

    def _add(self, hidden: Hidden, x: Tensor, norm: nn.Module) -> None:
        assert isinstance(norm, Norm)
        from_one = isinstance(norm, RMSNormFromOne)
        self._kernels.rms_norm_add(x, hidden.residual, norm.weight, eps=norm.eps, from_one=from_one)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight, linear.bias)


def _squeezed(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = angles
    return cos.squeeze(1), sin.squeeze(1)


def _head_norms(attention: Attention) -> HeadNorms | None:
    query, key = attention.q_norm, attention.k_norm
    if query is None or key is None:
        return None
    assert isinstance(query, Norm)
    assert isinstance(key, Norm)
    return HeadNorms(query.weight, key.weight, query.eps, isinstance(query, RMSNormFromOne))
