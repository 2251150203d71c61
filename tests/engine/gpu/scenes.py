"""Contexts in blocks, for kernels and their twins: every number that nobody may read is NaN."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2}}


@dataclass(frozen=True, slots=True)
class Heads:
    num_heads: int
    num_kv_heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class Scene:
    """`pool` [block, kv_head, token, k|v, dim], `tables` int32 [sequence, block], `num_keys` int32 [sequence]."""

    heads: Heads
    pool: Tensor
    tables: Tensor
    num_keys: Tensor

    def query(self, num_rows: int) -> Tensor:
        """Return queries as they lie in a projection's output, with other heads after them."""
        heads = self.heads
        generator = torch.Generator().manual_seed(1)
        qkv = torch.randn(num_rows, heads.num_heads + 2 * heads.num_kv_heads, heads.dim, generator=generator)
        return qkv.to(self.pool)[:, : heads.num_heads]

    def out(self, num_rows: int) -> Tensor:
        return self.pool.new_full((num_rows, self.heads.num_heads, self.heads.dim), torch.nan)


def scene(heads: Heads, lengths: Sequence[int], *, block_tokens: int, dtype: torch.dtype, device: torch.device) -> Scene:
    """Return contexts of `lengths` in scattered blocks; places beyond a context are NaN, and table entries out of the pool."""
    generator = torch.Generator().manual_seed(0)
    counts = [-(-length // block_tokens) for length in lengths]
    free = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    pool = torch.full((len(free), heads.num_kv_heads, block_tokens, 2, heads.dim), torch.nan)
    tables = torch.full((len(lengths), max(counts) + 2), 1 << 30, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            block, at = blocks[position // block_tokens], position % block_tokens
            pool[block, :, at] = torch.randn(heads.num_kv_heads, 2, heads.dim, generator=generator)
    num_keys = torch.tensor(lengths, dtype=torch.int32)
    return Scene(heads, pool.to(device, dtype), tables.to(device), num_keys.to(device))
