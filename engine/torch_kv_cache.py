"""The KV cache in a device's memory: the twin of `HostKVCache`, in torch; tested on torch's CPU device too."""

import ctypes
from collections.abc import Sequence
from math import gcd, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostep.core.digest import Digests, layer_coefficients, token_coefficients
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange

Owners = NDArray[np.int64]
WORDS_AT_ONCE = 1 << 24
"""How many words a digest widens to 64 bits at a time: 128 MiB of the device."""


class TorchKVCache:
    """A KV cache on one device; `words` is the pool as int32 [layer, block, kv_head, token, word].

    torch has no arithmetic for unsigned 64-bit numbers: digests are computed in int64, which wraps alike.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.words = torch.zeros(layout.pool_shape(num_blocks), dtype=torch.int32, device=device)

    def region(self) -> MemoryRegion:
        where, size = self.words.data_ptr(), self.words.nbytes
        return (
            MemoryRegion(where, size, "VRAM", self.words.device.index or 0) if self.words.is_cuda else MemoryRegion(where, size)
        )

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """See `KVMemory.copy_in`. Raises ValueError when the extent's size or the alignment of `missing` does not fit."""
        source = self._landing_words(extent, piece)
        unit = gcd(piece.source_block_tokens, self.layout.block_tokens)
        if piece.missing.start % unit or piece.missing.end > len(table) * self.layout.block_tokens:
            raise ValueError(f"{piece.missing} does not fit a table of {len(table)} blocks in units of {unit} tokens")
        tokens = TokenRange(piece.tokens_of(piece.source_blocks[0]).start, piece.tokens_of(piece.source_blocks[-1]).end)
        source_blocks, at = divmod(np.arange(tokens.start, tokens.end) - piece.missing.start, piece.source_block_tokens)
        layers = slice(piece.layers.start, piece.layers.stop)
        landed = source[layers, source_blocks % piece.num_slots, :, at]
        blocks, offsets = self._places(tokens, table)
        self.words[layers, blocks, :, offsets] = landed.to(self.words.device)
        if tokens.end == piece.missing.end:
            self._zero_tail(layers, tokens.end, table)
        return self._digests(piece.layers, tokens, table, source_blocks - piece.source_blocks.start)

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        size = self.layout.block_tokens
        return self._digests(layers, tokens, table, np.arange(tokens.start, tokens.end) // size - tokens.start // size)

    def _landing_words(self, extent: MemoryRegion, piece: LandedPiece) -> Tensor:
        layout = self.layout
        num_words = layout.head_token_bytes // 4
        shape = (layout.num_layers, piece.num_slots, layout.num_kv_heads, piece.source_block_tokens, num_words)
        if extent.num_bytes != 4 * prod(shape):
            raise ValueError(f"an extent of {extent.num_bytes} bytes cannot have the shape {shape}")
        return view_words(extent).view(shape)

    def _zero_tail(self, layers: slice, end: int, table: Sequence[BlockId]) -> None:
        block, at = divmod(end, self.layout.block_tokens)
        if at:
            self.words[layers, table[block], :, at:] = 0

    def _places(self, tokens: TokenRange, table: Sequence[BlockId]) -> tuple[Tensor, Tensor]:
        """Return the block and the place in it of each token, each [token]."""
        columns, offsets = divmod(np.arange(tokens.start, tokens.end), self.layout.block_tokens)
        blocks = np.asarray(table, dtype=np.int64)[columns]
        return torch.from_numpy(blocks).to(self.words.device), torch.from_numpy(offsets).to(self.words.device)

    def _digests(self, layers: range, tokens: TokenRange, table: Sequence[BlockId], owners: Owners) -> Digests:
        """Return the digests of `tokens` as uint64 [layer, owner], where `owners` [token] says which sum a token joins."""
        device = self.words.device
        blocks, offsets = self._places(tokens, table)
        _, _, num_heads, _, num_words = self.words.shape
        by_word = _signed(layer_coefficients(layers.start, len(layers), num_heads, num_words)).to(device)
        by_token = _signed(token_coefficients(tokens.start, len(tokens))).to(device)
        num_owners = int(owners[-1]) + 1 if len(owners) else 0
        sums = torch.zeros((num_owners, len(layers)), dtype=torch.int64, device=device)
        joins = torch.from_numpy(owners).to(device)
        step = max(1, WORDS_AT_ONCE // by_word.numel())
        for start in range(0, len(tokens), step):
            some = slice(start, start + step)
            words = self.words[layers.start : layers.stop, blocks[some], :, offsets[some]].long() & 0xFFFFFFFF
            sums.index_add_(0, joins[some], (words * by_word).sum((2, 3)) * by_token[some, None])
        return np.ascontiguousarray(sums.T.cpu().numpy()).view(np.uint64)


def view_words(region: MemoryRegion) -> Tensor:
    """Return the region's memory, on the host or on a device, as a flat int32 tensor that shares it."""
    if region.kind == "VRAM":
        return torch.as_tensor(_DeviceArray(region), device=torch.device("cuda", region.device))
    memory = memoryview((ctypes.c_char * region.num_bytes).from_address(region.address))
    return torch.frombuffer(memory, dtype=torch.int32)


class _DeviceArray:
    """Shows device memory to torch by the CUDA array interface."""

    def __init__(self, region: MemoryRegion) -> None:
        self.__cuda_array_interface__ = {
            "data": (region.address, False),
            "shape": (region.num_bytes // 4,),
            "typestr": "<i4",
            "version": 3,
        }


def _signed(coefficients: Digests) -> Tensor:
    return torch.from_numpy(coefficients.view(np.int64).copy())
