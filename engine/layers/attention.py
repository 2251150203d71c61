"""Grouped-query attention over the paged KV pool."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twostep.engine.forward_batch import ForwardBatch
from twostep.engine.kernels.reference import Score, attend_chunk, attend_decodes, clear_blocks, rotate, store_kv
from twostep.engine.layers.layer_kind import LayerKind
from twostep.engine.layers.rope import RopeConfig

PLAIN_SCORE = Score()


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Head counts and sizes; `num_heads` is a multiple of `num_kv_heads`."""

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What all layers of a step share: the batch, and cosines and sines, each [row, 1, turned dim], for each rotation."""

    batch: ForwardBatch
    rotations: Mapping[RopeConfig, tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Projects, rotates, writes keys and values into the pool, and attends over what the pool then holds.

    `norm`, where given, makes the normalisation over each head's numbers that queries, and again keys, go through first.
    """

    def __init__(
        self,
        shape: AttentionShape,
        kind: LayerKind,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        norm: Callable[[int], nn.Module] | None = None,
        score: Score = PLAIN_SCORE,
    ) -> None:
        super().__init__()
        self.shape, self.kind, self.score = shape, kind, score
        num_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.qkv_proj = nn.Linear(shape.dim, num_rows, bias=qkv_bias)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.dim, bias=out_bias)
        self.q_norm = norm(shape.head_dim) if norm else None
        self.k_norm = norm(shape.head_dim) if norm else None

    def forward(self, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        """Return [row, dim] for `hidden` [row, dim]; `pool` is this layer's."""
        num_heads, num_kv_heads = self.shape.num_heads, self.shape.num_kv_heads
        qkv = self.qkv_proj(hidden).view(hidden.shape[0], -1, self.shape.head_dim)
        value = qkv[:, num_heads + num_kv_heads :]
        rotated = rotate(self._normalised(qkv[:, : num_heads + num_kv_heads]), *inputs.rotations[self.kind.rope])
        query, key = rotated[:, :num_heads], rotated[:, num_heads:]
        attended = attend(query, key, value, pool, inputs.batch, self.kind.window, self.score)
        projected: Tensor = self.o_proj(attended.flatten(1))
        return projected

    def _normalised(self, query_and_key: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return query_and_key
        num_heads = self.shape.num_heads
        return torch.cat((self.q_norm(query_and_key[:, :num_heads]), self.k_norm(query_and_key[:, num_heads:])), dim=1)


def attend(
    query: Tensor, key: Tensor, value: Tensor, pool: Tensor, batch: ForwardBatch, window: int | None, score: Score
) -> Tensor:
    """Write `key` and `value` [row, kv_head, dim] into `pool`, then return the attention of `query` [row, head, dim].

    A query sees the last `window` keys up to its own. Rows beyond the batch's tokens are padding: nothing is written for
    them, and what is returned there is zero.
    """
    clear_blocks(pool, batch.fresh_blocks)
    store_kv(pool, key[: batch.num_tokens], value[: batch.num_tokens], batch.slots)
    attended = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for decodes in batch.decodes:
        seen = attend_decodes(query[decodes.rows], pool, decodes.head_blocks, decodes.masks[window], score)
        attended[decodes.rows] = seen
    for chunk in batch.chunks:
        attended[chunk.rows] = attend_chunk(query[chunk.rows], pool, chunk.head_blocks, chunk.masks[window], score)
    return attended
