"""The memory that holds KV: what the runners ask of it, and the one in host memory."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from math import gcd, prod
from typing import Protocol

import numpy as np

from twostep.core.digest import Digests, Words, digest_layers
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import KVMemory, LandedPiece
from twostep.core.memory import MemoryRegion, host_pages
from twostep.core.ticket import TokenRange


class KVCache(KVMemory, Protocol):
    """The KV cache that a runner computes in; see `KVMemory` for what the handoff asks of it."""

    @property
    def num_blocks(self) -> int: ...


class HostKVCache:
    """A KV cache in page-aligned host memory; `words` is the pool as uint32 [layer, block, kv_head, token, word]."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        pages = host_pages(num_blocks * layout.block_bytes, "engine.kv_bytes")
        self.words: Words = np.frombuffer(pages, dtype=np.uint32).reshape(layout.pool_shape(num_blocks))

    def region(self) -> MemoryRegion:
        return MemoryRegion(self.words.ctypes.data, self.words.nbytes)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """See `KVMemory.copy_in`. Raises ValueError when the extent's size or the alignment of `missing` does not fit."""
        source = self._landing_words(extent, piece)
        unit = gcd(piece.source_block_tokens, self.layout.block_tokens)
        if piece.missing.start % unit or piece.missing.end > len(table) * self.layout.block_tokens:
            raise ValueError(f"{piece.missing} does not fit a table of {len(table)} blocks in units of {unit} tokens")
        tokens = TokenRange(piece.tokens_of(piece.source_blocks[0]).start, piece.tokens_of(piece.source_blocks[-1]).end)
        runs = _runs(tokens, unit)
        for run in runs:
            self._blocks_words(piece.layers, run, table)[...] = _landed_words(source, piece, run)
        if tokens.end == piece.missing.end:
            self._zero_tail(piece.layers, tokens.end, table)
        by_run = self._digest_runs(piece.layers, runs, table)
        return np.add.reduceat(by_run, range(0, len(runs), piece.source_block_tokens // unit), axis=1)

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        return self._digest_runs(layers, _runs(tokens, self.layout.block_tokens), table)

    def _landing_words(self, extent: MemoryRegion, piece: LandedPiece) -> Words:
        layout = self.layout
        num_words = layout.head_token_bytes // 4
        shape = (layout.num_layers, piece.num_slots, layout.num_kv_heads, piece.source_block_tokens, num_words)
        if extent.num_bytes != 4 * prod(shape):
            raise ValueError(f"an extent of {extent.num_bytes} bytes cannot have the shape {shape}")
        memory = memoryview((ctypes.c_char * extent.num_bytes).from_address(extent.address))
        return np.frombuffer(memory, np.uint32).reshape(shape)

    def _blocks_words(self, layers: range, run: TokenRange, table: Sequence[BlockId]) -> Words:
        """Return a view [layer, head, token, word] of a run of tokens that lies in one block."""
        block, at = divmod(run.start, self.layout.block_tokens)
        return self.words[layers.start : layers.stop, table[block], :, at : at + len(run)]

    def _zero_tail(self, layers: range, end: int, table: Sequence[BlockId]) -> None:
        block, at = divmod(end, self.layout.block_tokens)
        if at:
            self.words[layers.start : layers.stop, table[block], :, at:] = 0

    def _digest_runs(self, layers: range, runs: Sequence[TokenRange], table: Sequence[BlockId]) -> Digests:
        """Return the digests of runs that lie in one block each, as uint64 [layer, run].

        One run in all layers at a time: its words, widened to 64 bits, still fit a core's cache.
        """
        digests = np.empty((len(layers), len(runs)), dtype=np.uint64)
        for i, run in enumerate(runs):
            words = self._blocks_words(layers, run, table)
            digests[:, i] = digest_layers(words, first_layer=layers.start, first_token=run.start)
        return digests


def _landed_words(source: Words, piece: LandedPiece, run: TokenRange) -> Words:
    """Return a view [layer, head, token, word] of a run of tokens that lies in one of P's blocks."""
    block, at = divmod(run.start - piece.missing.start, piece.source_block_tokens)
    return source[piece.layers.start : piece.layers.stop, block % piece.num_slots, :, at : at + len(run)]


def _runs(tokens: TokenRange, size: int) -> list[TokenRange]:
    """Cut `tokens` at the multiples of `size`."""
    edges = [tokens.start, *range((tokens.start // size + 1) * size, tokens.end, size), tokens.end]
    return [TokenRange(start, end) for start, end in pairwise(edges) if start < end]
