"""The memory that holds KV: what the handoff and the runners ask of it, and the one in host memory."""

import ctypes
import mmap
from collections.abc import Sequence
from math import gcd
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twostep.core.digest import Digests, Words, digest_blocks, token_coefficients
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.landed_piece import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange

Indices = NDArray[np.intp]
WORDS_AT_ONCE = 1 << 18
"""How many words a digest widens to 64 bits at a time: 2 MiB, which stays in a core's cache."""


class KVCache(Protocol):
    """The KV cache of one node. Calls may come from any thread; the caller owns the blocks it names."""

    @property
    def layout(self) -> KVLayout: ...

    @property
    def num_blocks(self) -> int: ...

    def region(self) -> MemoryRegion:
        """Return the whole pool, laid out as `layout.pool_shape`."""

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """Copy `piece` from the landing extent into the blocks of `table` and return the digests of the *copy*.

        `table` is the request's whole block table, from position 0. Digests are uint64 [layer, source block], over valid
        tokens only. The tail of the last block beyond `missing.end` is zeroed.
        """

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        """Return the digests of `tokens` as they lie in the blocks of `table`: uint64 [layer, block].

        The second axis counts this node's own blocks that `tokens` touches; digests of parts of a block add up.
        """


class HostKVCache:
    """A KV cache in page-aligned host memory; `words` is the pool as uint32 [layer, block, kv_head, token, word]."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        pages = mmap.mmap(-1, num_blocks * layout.block_bytes)
        self.words: Words = np.frombuffer(pages, dtype=np.uint32).reshape(layout.pool_shape(num_blocks))

    def region(self) -> MemoryRegion:
        return MemoryRegion(self.words.ctypes.data, self.words.nbytes)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """See `KVCache.copy_in`. Raises ValueError when the extent's size or the alignment of `missing` does not fit."""
        source = self._landing_words(extent, piece)
        unit = gcd(piece.source_block_tokens, self.layout.block_tokens)
        if piece.missing.start % unit or piece.missing.end > len(table) * self.layout.block_tokens:
            raise ValueError(f"{piece.missing} does not fit a table of {len(table)} blocks in units of {unit} tokens")
        tokens = TokenRange(piece.tokens_of(piece.source_blocks[0]).start, piece.tokens_of(piece.source_blocks[-1]).end)
        starts = range(tokens.start, tokens.end, unit)
        for start in starts:
            self._copy_unit(source, piece, TokenRange(start, min(start + unit, tokens.end)), table)
        if tokens.end == piece.missing.end:
            self._zero_tail(piece.layers, tokens.end, table)
        by_unit = self._digest_units(piece.layers, tokens, starts, unit, table)
        return np.add.reduceat(by_unit, range(0, len(starts), piece.source_block_tokens // unit), axis=1)

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        size = self.layout.block_tokens
        return self._digest_units(layers, tokens, range(tokens.start // size * size, tokens.end, size), size, table)

    def _landing_words(self, extent: MemoryRegion, piece: LandedPiece) -> Words:
        layout = self.layout
        num_words = layout.head_token_bytes // 4
        shape = (layout.num_layers, piece.num_slots, layout.num_kv_heads, piece.source_block_tokens, num_words)
        if extent.num_bytes != 4 * np.prod(shape):
            raise ValueError(f"an extent of {extent.num_bytes} bytes cannot have the shape {shape}")
        memory = memoryview((ctypes.c_char * extent.num_bytes).from_address(extent.address))
        return np.frombuffer(memory, np.uint32).reshape(shape)

    def _copy_unit(self, source: Words, piece: LandedPiece, tokens: TokenRange, table: Sequence[BlockId]) -> None:
        """Copy a run of tokens that crosses no block boundary on either side."""
        source_block, source_at = divmod(tokens.start - piece.missing.start, piece.source_block_tokens)
        block, at = divmod(tokens.start, self.layout.block_tokens)
        layers = slice(piece.layers.start, piece.layers.stop)
        landed = source[layers, source_block % piece.num_slots, :, source_at : source_at + len(tokens)]
        self.words[layers, table[block], :, at : at + len(tokens)] = landed

    def _zero_tail(self, layers: range, end: int, table: Sequence[BlockId]) -> None:
        block, at = divmod(end, self.layout.block_tokens)
        if at:
            self.words[layers.start : layers.stop, table[block], :, at:] = 0

    def _digest_units(self, layers: range, tokens: TokenRange, starts: range, unit: int, table: Sequence[BlockId]) -> Digests:
        """Return the digests of `tokens` in runs of `unit` positions that begin at `starts`, as uint64 [layer, run]."""
        num_layers, num_blocks, num_heads, block_tokens, num_words = self.words.shape
        pool = self.words.reshape(num_layers, num_blocks, num_heads, block_tokens // unit, unit, num_words)
        firsts = np.asarray(starts, dtype=np.intp)
        blocks = np.asarray(table, dtype=np.intp)[firsts // block_tokens]
        parts = firsts % block_tokens // unit
        by_token = _coefficients_within(tokens, firsts, unit)
        digests = np.empty((len(firsts), len(layers)), dtype=np.uint64)
        step = max(1, WORDS_AT_ONCE // (len(layers) * num_heads * unit * num_words))
        for start in range(0, len(firsts), step):
            some = slice(start, start + step)
            words = pool[layers.start : layers.stop, blocks[some], :, parts[some]]
            digests[some] = digest_blocks(words, by_token[some], first_layer=layers.start)
        return digests.T


def _coefficients_within(tokens: TokenRange, firsts: Indices, unit: int) -> Digests:
    """Return the token coefficients of runs of `unit` positions as [run, token], 0 outside of `tokens`."""
    first = int(firsts[0]) if len(firsts) else 0
    positions = firsts[:, None] + np.arange(unit)
    inside = (positions >= tokens.start) & (positions < tokens.end)
    coefficients = token_coefficients(first, len(firsts) * unit).reshape(len(firsts), unit)
    return np.where(inside, coefficients, np.uint64(0))
