"""Keeps the digest of every (block, layer) that a prefill node has computed, made when the KV is written.

A digest made when the KV is sent would bless whatever had happened to the block in between.
"""

from collections.abc import Sequence

import numpy as np

from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_memory import KVMemory
from twostep.core.ticket import TokenRange


class SourceDigests:
    """Digests as uint64 [block, layer] over the tokens computed so far; they stay with a block until it is written anew."""

    def __init__(self, memory: KVMemory, num_blocks: int) -> None:
        self._memory = memory
        self._block_tokens = memory.layout.block_tokens
        self._by_block = np.zeros((num_blocks, memory.layout.num_layers), np.uint64)

    def add(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> None:
        """Digest `tokens`, whose KV has just been written in `layers`; `table` is the whole block table.

        Tokens of one block come in order; the first token of a block starts its digest afresh.
        """
        if not len(tokens):
            return
        parts = self._memory.digest(layers, tokens, table)
        blocks = np.array(self._blocks_of(tokens, table))
        goes_on = blocks[0] if tokens.start % self._block_tokens else None
        before = self._by_block[goes_on, layers.start : layers.stop].copy() if goes_on is not None else None
        self._by_block[blocks, layers.start : layers.stop] = parts.T
        if before is not None:
            self._by_block[goes_on, layers.start : layers.stop] += before

    def of(self, layers: range, missing: TokenRange, table: Sequence[BlockId]) -> Digests:
        """Return the digests of `missing` (block-aligned start) as uint64 [layer, block of the range]."""
        blocks = self._blocks_of(missing, table)
        return np.ascontiguousarray(self._by_block[blocks, layers.start : layers.stop].T)

    def spoiled(self, missing: TokenRange, table: Sequence[BlockId]) -> list[int]:
        """Digest `missing` as it lies there now; return the range's blocks that are no longer what was computed."""
        layers = range(self._memory.layout.num_layers)
        now = self._memory.digest(layers, missing, table)
        return [int(block) for block in np.flatnonzero((now != self.of(layers, missing, table)).any(axis=0))]

    def _blocks_of(self, tokens: TokenRange, table: Sequence[BlockId]) -> list[BlockId]:
        end = -(-tokens.end // self._block_tokens)
        return list(table[tokens.start // self._block_tokens : end])
