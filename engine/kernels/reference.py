"""The model's kernels in plain torch: what runs on CPU, and what every faster kernel is compared with.

A layer's pool is `[block, kv_head, token, k|v, dim]`; `slots` and `head_blocks` index it flattened to rows of one
(block, head, token) and of one (block, head).
"""

from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

WHOLE_ROWS = 16
"""Matrices come in multiples of this many rows: below it, MKL and oneDNN take other paths on CPU, and a token's result
would depend on the company in which it was computed. Four are enough on AMD's processors, Intel's want up to 16."""

KEY_TILE = 512
"""Keys of a prompt's tokens come in multiples of so many, the tile of torch's CPU attention."""


@dataclass(frozen=True, slots=True)
class Score:
    """How queries weigh keys: by their product times `scale` (None: 1 / sqrt(dim)), bent below `cap` where there is one."""

    scale: float | None = None
    cap: float | None = None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x` [..., dim] normalised in float32, then scaled in its own type, as `transformers` does."""
    wide = x.float()
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normalised.to(x.dtype)


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x` [..., dim] normalised and scaled by 1 + `weight`, all in float32, as Gemma does."""
    wide = x.float()
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normalised * (1.0 + weight.float())).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding to `x` [token, head, dim]; `cos`, `sin` [token, 1, turned] (Su et al. 2021, halves).

    The first `turned` numbers of each head are turned, the others kept.
    """
    turned = x[..., : cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    rotated = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return rotated if rotated.shape == x.shape else torch.cat((rotated, x[..., cos.shape[-1] :]), dim=-1)


def silu_and_multiply(gate_and_up: Tensor) -> Tensor:
    """Return silu(gate) * up, where `gate_and_up` [..., 2 * dim] holds both."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    wide = gate.float()
    # torch's own silu and gelu compute the last few numbers of a tensor by other means than the rest, to other bits.
    return (wide / (1 + (-wide).exp())).to(gate.dtype) * up


def gelu_and_multiply(gate_and_up: Tensor) -> Tensor:
    """Return gelu(gate) * up, by the tanh approximation, where `gate_and_up` [..., 2 * dim] holds both."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    wide = gate.float()
    gelu = 0.5 * wide * (1 + (sqrt(2 / pi) * (wide + 0.044715 * wide * wide * wide)).tanh())
    return gelu.to(gate.dtype) * up


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Return `x` bent smoothly into (-cap, cap), or as it is without a cap."""
    return x if cap is None else (x / cap).tanh() * cap


def store_kv(pool: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write `key` and `value` [token, kv_head, dim] into the pool's rows `slots` [token * kv_head]."""
    rows = torch.stack((key, value), dim=2)
    pool.view(-1, 2 * key.shape[-1]).index_copy_(0, slots, rows.view(-1, 2 * key.shape[-1]))


def clear_blocks(pool: Tensor, blocks: Tensor) -> None:
    """Zero whole `blocks` [n] of a layer's pool."""
    pool.index_fill_(0, blocks, 0)


def gather_kv(pool: Tensor, head_blocks: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return keys and values, each [batch, kv_head, token, dim], of the block tables in `head_blocks`.

    `head_blocks` [batch * kv_head * blocks] numbers pairs (block, head).
    """
    _, num_heads, _, _, head_dim = pool.shape
    gathered = pool.view(pool.shape[0] * num_heads, -1).index_select(0, head_blocks)
    key, value = gathered.view(batch, num_heads, -1, 2, head_dim).unbind(3)
    return key, value


def attend_chunk(query: Tensor, pool: Tensor, head_blocks: Tensor, mask: Tensor, score: Score) -> Tensor:
    """Attend from the consecutive tokens of one sequence.

    `query` [token, head, dim]; `mask` [padded token, key], true where a query sees a key. Returns [token, head, dim].
    """
    key, value = gather_kv(pool, head_blocks, batch=1)
    padded = functional.pad(query, (0, 0, 0, 0, 0, mask.shape[0] - query.shape[0]))
    attended = _attend(padded.transpose(0, 1)[None], key, value, mask, score)
    return attended[0, :, : query.shape[0]].transpose(0, 1)


def attend_decodes(query: Tensor, pool: Tensor, head_blocks: Tensor, mask: Tensor, score: Score) -> Tensor:
    """Attend from one token of each of several sequences.

    `query` [sequence, head, dim]; `mask` [sequence, 1, 1, key]. Returns [sequence, head, dim].
    """
    num_sequences, num_heads, head_dim = query.shape
    key, value = gather_kv(pool, head_blocks, batch=num_sequences)
    # The query heads that share a KV head become the rows of one small matrix: its keys are read once.
    by_kv_head = query.view(num_sequences, key.shape[1], -1, head_dim)
    group = by_kv_head.shape[2]
    padded = functional.pad(by_kv_head, (0, 0, 0, -group % WHOLE_ROWS))
    attended = _attend(padded, key, value, mask, score)
    return attended[:, :, :group].reshape(num_sequences, num_heads, head_dim)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, score: Score) -> Tensor:
    """Attend from `query` [batch, head, row, dim] to `key` and `value` [batch, kv_head, key, dim]."""
    if score.cap is None:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=score.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    num_shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(num_shared, dim=1), value.repeat_interleave(num_shared, dim=1)
    scale = query.shape[-1] ** -0.5 if score.scale is None else score.scale
    scores = soft_cap(query @ key.transpose(-2, -1) * scale, score.cap).masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    # Tile by tile: how a longer sum is cut depends on its length, and how many keys there are on how a prompt was cut.
    ends = range(0, value.shape[-2], KEY_TILE)
    return sum((weights[..., at : at + KEY_TILE] @ value[..., at : at + KEY_TILE, :] for at in ends), torch.zeros_like(query))
