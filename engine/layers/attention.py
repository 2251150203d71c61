"""Grouped-query attention over the paged KV pool."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twostep.engine.kernels.reference import attend_chunk, attend_decodes, clear_blocks, rotate, store_kv
from twostep.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Head counts and sizes; `num_heads` is a multiple of `num_kv_heads`."""

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What all layers of a step share: the plan and the rotation [row, 1, dim]."""

    plan: StepPlan
    cos: Tensor
    sin: Tensor


class Attention(nn.Module):
    """Projects, rotates, writes keys and values into the pool, and attends over what the pool then holds."""

    def __init__(self, shape: AttentionShape, *, qkv_bias: bool, out_bias: bool) -> None:
        super().__init__()
        self.shape = shape
        num_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.qkv_proj = nn.Linear(shape.dim, num_rows, bias=qkv_bias)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.dim, bias=out_bias)

    def forward(self, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        """Return [row, dim] for `hidden` [row, dim]; `pool` is this layer's."""
        num_heads, num_kv_heads = self.shape.num_heads, self.shape.num_kv_heads
        qkv = self.qkv_proj(hidden).view(hidden.shape[0], -1, self.shape.head_dim)
        rotated = rotate(qkv[:, : num_heads + num_kv_heads], inputs.cos, inputs.sin)
        query, key, value = rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_heads + num_kv_heads :]
        attended = attend(query, key, value, pool, inputs.plan)
        projected: Tensor = self.o_proj(attended.flatten(1))
        return projected


def attend(query: Tensor, key: Tensor, value: Tensor, pool: Tensor, plan: StepPlan) -> Tensor:
    """Write `key` and `value` [row, kv_head, dim] into `pool`, then return the attention of `query` [row, head, dim].

    Rows beyond the plan's tokens are padding: nothing is written for them, and what is returned there is zero.
    """
    clear_blocks(pool, plan.fresh_blocks)
    store_kv(pool, key[: plan.num_tokens], value[: plan.num_tokens], plan.slots)
    attended = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for decodes in plan.decodes:
        attended[decodes.rows] = attend_decodes(query[decodes.rows], pool, decodes.head_blocks, decodes.mask)
    for chunk in plan.chunks:
        attended[chunk.rows] = attend_chunk(query[chunk.rows], pool, chunk.head_blocks, chunk.mask)
    return attended
