"""The memory that holds KV: what the runners ask of it, and the one in host memory."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from math import gcd, prod
from typing import Protocol

import numpy as np

from twostep.core.digest import Digests, Words, digest_blocks, token_coefficients
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import KVMemory, LandedPiece, OpenMemory, Staging
from twostep.core.memory import HostMemory, MemoryRegion, host_pages
from twostep.core.ticket import TokenRange

WORDS_AT_ONCE = 24 << 10
"""How many words a digest widens to 64 bits at a time: they still fit a core's cache, and few calls are made."""


class KVCache(KVMemory, Protocol):
    """The KV cache that a runner computes in; see `KVMemory` for what the handoff asks of it."""

    @property
    def num_blocks(self) -> int: ...

    def open_memory(self, num_bytes: int) -> OpenMemory:
        """Return zeroed memory out of which `copy_in` copies, of the kind that the pool lies in.

        Raises ConfigError when it cannot be had.
        """

    def open_host_memory(self, num_bytes: int) -> OpenMemory:
        """The same, in host memory wherever the pool lies."""

    def staging(self, unit_bytes: int, num_slots: int) -> Staging:
        """Return staging for units of the pool, for transports that cannot read it."""


class HostKVCache:
    """A KV cache in page-aligned host memory; `words` is the pool as uint32 [layer, block, kv_head, token, word]."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        pages = host_pages(num_blocks * layout.block_bytes, "engine.kv_bytes")
        self.words: Words = np.frombuffer(pages, dtype=np.uint32).reshape(layout.pool_shape(num_blocks))

    def region(self) -> MemoryRegion:
        return MemoryRegion(self.words.ctypes.data, self.words.nbytes)

    def open_memory(self, num_bytes: int) -> HostMemory:
        return self.open_host_memory(num_bytes)

    def open_host_memory(self, num_bytes: int) -> HostMemory:
        return HostMemory(num_bytes, "landing_bytes")

    def staging(self, unit_bytes: int, num_slots: int) -> Staging:
        """Raises ValueError: every transport can read this pool."""
        raise ValueError(f"a pool on the host needs no {num_slots} slots of {unit_bytes} bytes")

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
        by_run = self._digest_runs(piece.layers, tokens, runs, table)
        return np.add.reduceat(by_run, range(0, len(runs), piece.source_block_tokens // unit), axis=1)

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        return self._digest_runs(layers, tokens, _runs(tokens, self.layout.block_tokens), table)

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

    def _runs_words(self, layers: range, runs: Sequence[TokenRange], table: Sequence[BlockId]) -> Words:
        """Return the words of whole blocks, or of one part of a block, as [layer, run, head, token, word]."""
        if len(runs[0]) < self.layout.block_tokens:
            return self._blocks_words(layers, runs[0], table)[:, None]
        # A copy, and faster for it: what follows finds the words in a row.
        blocks = [table[run.start // self.layout.block_tokens] for run in runs]
        return self.words[layers.start : layers.stop, blocks]

    def _zero_tail(self, layers: range, end: int, table: Sequence[BlockId]) -> None:
        block, at = divmod(end, self.layout.block_tokens)
        if at:
            self.words[layers.start : layers.stop, table[block], :, at:] = 0

    def _digest_runs(self, layers: range, tokens: TokenRange, runs: Sequence[TokenRange], table: Sequence[BlockId]) -> Digests:
        """Return the digests of `runs`, which make up `tokens` and lie in one block each, as uint64 [layer, run]."""
        size = self.layout.block_tokens
        num_words = len(layers) * self.layout.layer_block_bytes // 4
        at_once = max(1, WORDS_AT_ONCE // num_words)
        by_token = token_coefficients(tokens.start, len(tokens))
        digests = np.empty((len(layers), len(runs)), dtype=np.uint64)
        for start, end in _batches([len(run) == size for run in runs], at_once):
            words = self._runs_words(layers, runs[start:end], table)
            these = by_token[runs[start].start - tokens.start : runs[end - 1].end - tokens.start]
            digests[:, start:end] = digest_blocks(words, these, first_layer=layers.start)
        return digests


def _landed_words(source: Words, piece: LandedPiece, run: TokenRange) -> Words:
    """Return a view [layer, head, token, word] of a run of tokens that lies in one of P's blocks."""
    block, at = divmod(run.start - piece.missing.start, piece.source_block_tokens)
    return source[piece.layers.start : piece.layers.stop, block % piece.num_slots, :, at : at + len(run)]


def _batches(is_whole: Sequence[bool], at_once: int) -> list[tuple[int, int]]:
    """Cut the runs so that at most `at_once` whole blocks are together, and no part of a block is with another run."""
    batches: list[tuple[int, int]] = []
    for i, whole in enumerate(is_whole):
        start, end = batches[-1] if batches else (0, 0)
        if whole and batches and is_whole[start] and end - start < at_once:
            batches[-1] = (start, i + 1)
        else:
            batches.append((i, i + 1))
    return batches


def _runs(tokens: TokenRange, size: int) -> list[TokenRange]:
    """Cut `tokens` at the multiples of `size`."""
    edges = [tokens.start, *range((tokens.start // size + 1) * size, tokens.end, size), tokens.end]
    return [TokenRange(start, end) for start, end in pairwise(edges) if start < end]
