"""The KV cache in a device's memory: the twin of `HostKVCache`, in torch; tested on torch's CPU device too."""

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import gcd, prod

import numpy as np
import torch
from torch import Tensor

from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.engine.device_memory import PinnedStaging, TensorMemory, device_memory, host_memory, region_of
from twostep.engine.kernels.block_kernels import BlockKernels, Landed
from twostep.engine.kernels.gpu_presence import require_triton
from twostep.engine.kernels.reference_blocks import TorchBlocks


class TorchKVCache:
    """A KV cache on one device; `words` is the pool as int32 [layer, block, kv_head, token, word].

    On a GPU, copies and digests run on `stream`, beside the model's steps. What must be done before them elsewhere, the caller
    has the stream wait for.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device, *, kernels: BlockKernels | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.words = torch.zeros(layout.pool_shape(num_blocks), dtype=torch.int32, device=device)
        self.stream = _side_stream(device)
        self._kernels = kernels or _kernels_for(device)

    def region(self) -> MemoryRegion:
        return region_of(self.words)

    def open_memory(self, num_bytes: int) -> TensorMemory:
        return device_memory(num_bytes, self.words.device)

    def open_host_memory(self, num_bytes: int) -> TensorMemory:
        return host_memory(num_bytes, self.words.device)

    def staging(self, unit_bytes: int, num_slots: int) -> PinnedStaging:
        return PinnedStaging(self.words, unit_bytes, num_slots)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """See `KVMemory.copy_in`. Raises ValueError when the extent's size or the alignment of `missing` does not fit."""
        source = self._landing_words(extent, piece)
        unit = gcd(piece.source_block_tokens, self.layout.block_tokens)
        if piece.missing.start % unit or piece.missing.end > len(table) * self.layout.block_tokens:
            raise ValueError(f"{piece.missing} does not fit a table of {len(table)} blocks in units of {unit} tokens")
        with self._on_stream():
            landed = self._reachable(source, piece)
            return _unsigned(self._kernels.copy_in(landed, self.words, piece, self._on_device(table)))

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        with self._on_stream():
            return _unsigned(self._kernels.digest(self.words, layers, tokens, self._on_device(table)))

    def try_kernels(self) -> None:
        """Copy zeros into the first block, and digest it: kernels are compiled now, and not while somebody waits for them."""
        layers, tokens, table = range(self.layout.num_layers), TokenRange(0, self.layout.block_tokens), [BlockId(0)]
        landing = self.open_memory(self.layout.block_bytes)
        self.copy_in(landing.region(), LandedPiece(layers, range(1), tokens, len(tokens), num_slots=1), table)
        self.digest(layers, tokens, table)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _on_device(self, table: Sequence[BlockId]) -> Tensor:
        return torch.tensor(table, dtype=torch.int32).to(self.words.device)

    def _landing_words(self, extent: MemoryRegion, piece: LandedPiece) -> Tensor:
        layout = self.layout
        num_words = layout.head_token_bytes // 4
        shape = (layout.num_layers, piece.num_slots, layout.num_kv_heads, piece.source_block_tokens, num_words)
        if extent.num_bytes != 4 * prod(shape):
            raise ValueError(f"an extent of {extent.num_bytes} bytes cannot have the shape {shape}")
        return view_words(extent).view(shape)

    def _reachable(self, source: Tensor, piece: LandedPiece) -> Landed:
        """Return the landed words where the pool's device can read them: as they lie, or, out of pageable memory, a copy."""
        if source.device == self.words.device or source.is_pinned():
            return Landed(source)
        slots = torch.arange(piece.source_blocks.start, piece.source_blocks.stop) % piece.num_slots
        staged = source[piece.layers.start : piece.layers.stop, slots].to(self.words.device)
        return Landed(staged, first_layer=piece.layers.start, first_block=piece.source_blocks.start)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream that goes on from all that was asked of the device so far, or None where there are no streams."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _kernels_for(device: torch.device) -> BlockKernels:
    """Return what moves blocks on a device. Raises ConfigError when a GPU's kernels cannot be loaded."""
    if device.type == "cpu":
        return TorchBlocks()
    require_triton()
    from twostep.engine.kernels.gpu.blocks import TritonBlocks

    return TritonBlocks()


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


def _unsigned(digests: Tensor) -> Digests:
    return np.ascontiguousarray(digests.cpu().numpy()).view(np.uint64)
