"""KV memory in a numpy array, written for clarity: the double that stands for a node's KV cache in these tests."""

import ctypes
from collections.abc import Sequence

import numpy as np

from twostep.core.digest import Digests, Words, digest
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece, Units
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.kv_transfer.source_digests import SourceDigests


class HostMemory:
    """Implements `KVMemory` over `words` [layer, block, kv_head, token, word]."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self._layout = layout
        self.words: Words = np.zeros(layout.pool_shape(num_blocks), np.uint32)
        self.num_copies = 0

    @property
    def layout(self) -> KVLayout:
        return self._layout

    def region(self) -> MemoryRegion:
        return region_of(self.words)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        self.num_copies += 1
        slots = self._slots(extent, piece)
        found = np.zeros((len(piece.layers), len(piece.source_blocks)), np.uint64)
        for column, block in enumerate(piece.source_blocks):
            tokens = piece.tokens_of(block)
            for row, layer in enumerate(piece.layers):
                landed = slots[layer, block % piece.num_slots, :, : len(tokens)]
                self.write(layer, tokens, landed, table)
                self._zero_tail(layer, tokens, piece.missing.end, table)
                found[row, column] = self.digest_of(layer, tokens, table)
        return found

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        size = self._layout.block_tokens
        blocks = range(tokens.start // size, -(-tokens.end // size))
        parts = [TokenRange(max(tokens.start, b * size), min(tokens.end, (b + 1) * size)) for b in blocks]
        return np.array([[self.digest_of(layer, part, table) for part in parts] for layer in layers], np.uint64)

    def digest_of(self, layer: int, tokens: TokenRange, table: Sequence[BlockId]) -> int:
        return digest(self.read(layer, tokens, table), layer=layer, first_token=tokens.start)

    def read(self, layer: int, tokens: TokenRange, table: Sequence[BlockId]) -> Words:
        """Return [kv_head, token, word] of the positions `tokens`."""
        size = self._layout.block_tokens
        return np.stack([self.words[layer, table[t // size], :, t % size] for t in range(tokens.start, tokens.end)], axis=1)

    def write(self, layer: int, tokens: TokenRange, words: Words, table: Sequence[BlockId]) -> None:
        size = self._layout.block_tokens
        for index, position in enumerate(range(tokens.start, tokens.end)):
            self.words[layer, table[position // size], :, position % size] = words[:, index]

    def _zero_tail(self, layer: int, tokens: TokenRange, end: int, table: Sequence[BlockId]) -> None:
        if tokens.end == end and end % self._layout.block_tokens:
            self.words[layer, table[end // self._layout.block_tokens], :, end % self._layout.block_tokens :] = 0

    def _slots(self, extent: MemoryRegion, piece: LandedPiece) -> Words:
        _, _, heads, _, words = self._layout.pool_shape(1)
        shape = self._layout.num_layers, piece.num_slots, heads, piece.source_block_tokens, words
        return view(extent).view(np.uint32).reshape(shape)


class LateStaging:
    """Implements `Staging` over units of `source`. A copy is made when it is looked at for the `num_looks`th time."""

    def __init__(self, source: MemoryRegion, unit_bytes: int, num_slots: int, num_looks: int = 2) -> None:
        self.num_slots = num_slots
        self._num_looks = num_looks
        self._source = view(source).reshape(-1, unit_bytes)
        self._slots = np.zeros((num_slots, unit_bytes), np.uint8)

    def region(self) -> MemoryRegion:
        return region_of(self._slots)

    def copy(self, units: Units, first_slot: int) -> "LateCopy":
        return LateCopy(self._source[units].copy(), self._slots[first_slot : first_slot + len(units)], self._num_looks)


class LateCopy:
    """Implements `Staged`."""

    def __init__(self, content: np.ndarray, slots: np.ndarray, num_looks: int) -> None:
        self._content, self._slots = content, slots
        self._looks_left = num_looks

    def is_done(self) -> bool:
        self._looks_left -= 1
        if self._looks_left == 0:
            self._slots[:] = self._content
        return self._looks_left <= 0


def region_of(array: np.ndarray) -> MemoryRegion:
    return MemoryRegion(array.ctypes.data, array.nbytes)


def view(region: MemoryRegion) -> np.ndarray:
    """Return the region's bytes as an array that shares them."""
    return np.frombuffer((ctypes.c_uint8 * region.num_bytes).from_address(region.address), np.uint8)


def compute(
    memory: HostMemory, digests: SourceDigests, layers: range, tokens: TokenRange, table: Sequence[BlockId], seed: int
) -> None:
    """Stand for a model: fill `tokens` of `layers` with words that depend on position and seed, and digest them."""
    _, _, heads, _, words = memory.layout.pool_shape(1)
    for layer in layers:
        random = np.random.default_rng([seed, layer, tokens.start])
        memory.write(layer, tokens, random.integers(1, 2**32, (heads, len(tokens), words), np.uint32), table)
    digests.add(layers, tokens, table)
