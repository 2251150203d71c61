"""The kernels that move and digest blocks do to the byte what the host's cache does."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostep.core.digest import digest
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.engine.kernels.block_kernels import Landed
from twostep.engine.kernels.gpu.block_digest import digest_blocks
from twostep.engine.kernels.gpu.blocks import TritonBlocks
from twostep.engine.kernels.gpu.copy_in import copy_in
from twostep.engine.kernels.reference_blocks import TorchBlocks
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.torch_kv_cache import TorchKVCache

LAYERS, NUM_BLOCKS = 2, 12
TABLE = [BlockId(block) for block in (7, 2, 9, 4, 0, 11, 5, 1, 10, 3, 8, 6)]

Words = NDArray[np.int32]


def noise(shape: tuple[int, ...], seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)


def twins(
    block_tokens: int, device: torch.device, num_heads: int = 2, head_dim: int = 10, dtype: str = "bfloat16"
) -> tuple[HostKVCache, TorchKVCache]:
    layout = KVLayout(LAYERS, num_heads, head_dim, block_tokens, dtype)
    host, ours = HostKVCache(layout, NUM_BLOCKS), TorchKVCache(layout, NUM_BLOCKS, device, kernels=TritonBlocks())
    host.words[:] = noise(host.words.shape).view(np.uint32)
    ours.words.copy_(torch.from_numpy(host.words.view(np.int32)))
    return host, ours


def landed_words(piece: LandedPiece, num_heads: int, num_words: int, device: torch.device) -> tuple[Words, Tensor]:
    """Return an extent in host memory, and where the kernels are to find it."""
    words = noise((LAYERS, piece.num_slots, num_heads, piece.source_block_tokens, num_words), seed=2)
    return words, torch.from_numpy(words).to(device)


def region(words: Words) -> MemoryRegion:
    return MemoryRegion(words.ctypes.data, words.nbytes)


@pytest.mark.parametrize(
    ("block_tokens", "piece"),
    [
        (32, LandedPiece(range(2), range(3), TokenRange(0, 70), 32, 3)),
        (32, LandedPiece(range(1, 2), range(1), TokenRange(32, 96), 64, 1)),
        (64, LandedPiece(range(2), range(1, 4), TokenRange(64, 175), 32, 4)),
        (64, LandedPiece(range(2), range(2), TokenRange(0, 128), 64, 2)),
        (32, LandedPiece(range(1), range(3, 5), TokenRange(0, 160), 32, 2)),
        (96, LandedPiece(range(2), range(1), TokenRange(192, 193), 64, 1)),
        (16, LandedPiece(range(2), range(1), TokenRange(0, 21), 32, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_landed_piece_is_copied_and_digested_as_by_the_host_cache(
    block_tokens: int, piece: LandedPiece, dtype: str, device: torch.device
) -> None:
    host, ours = twins(block_tokens, device, dtype=dtype)
    words, _ = landed_words(piece, 2, ours.words.shape[-1], device)
    digests = ours.copy_in(region(words), piece, TABLE)
    np.testing.assert_array_equal(digests, host.copy_in(region(words), piece, TABLE))
    np.testing.assert_array_equal(ours.words.cpu().numpy(), host.words.view(np.int32))


@pytest.mark.parametrize(
    "tokens", [TokenRange(0, 96), TokenRange(5, 9), TokenRange(31, 65), TokenRange(40, 41), TokenRange(7, 7)]
)
@pytest.mark.parametrize("block_tokens", [16, 32])
def test_blocks_are_digested_as_by_the_host_cache(block_tokens: int, tokens: TokenRange, device: torch.device) -> None:
    host, ours = twins(block_tokens, device)
    for layers in (range(2), range(1, 2)):
        np.testing.assert_array_equal(ours.digest(layers, tokens, TABLE), host.digest(layers, tokens, TABLE))


def test_positions_beyond_the_first_coefficients_digest_as_defined(device: torch.device) -> None:
    host, ours = twins(32, device)
    table = [BlockId(0)] * 1000 + TABLE[:1]
    tokens = TokenRange(32_000, 32_031)
    expected = [digest(host.words[layer, TABLE[0], :, :31], layer=layer, first_token=32_000) for layer in range(LAYERS)]
    assert ours.digest(range(LAYERS), tokens, table).tolist() == [[one] for one in expected]


def test_ranks_that_hold_some_heads_fill_a_pool_and_their_digests_add_up(device: torch.device) -> None:
    _, ours = twins(32, device, num_heads=5)
    piece = LandedPiece(range(LAYERS), range(2), TokenRange(0, 50), 32, 2)
    all_heads, whole = landed_words(piece, 5, 10, device)
    table = torch.tensor(TABLE, dtype=torch.int32, device=device)
    parts = [
        copy_in(Landed(whole[:, :, heads].contiguous()), ours.words, piece, table, to_head=heads.start, first_head=heads.start)
        for heads in (slice(0, 2), slice(2, 5))
    ]
    scattered = ours.words.clone()
    together = copy_in(Landed(whole), ours.words, piece, table)
    assert torch.equal(parts[0] + parts[1], together)
    assert torch.equal(scattered, ours.words)
    assert not scattered[:, TABLE[1], :, 18:].any()
    expected = digest(all_heads[1, 0, 2:5].view(np.uint32), layer=1, first_token=0, first_head=2)
    assert int(parts[1][1, 0]) & ((1 << 64) - 1) == expected


def test_a_rank_digests_its_heads_by_their_numbers_in_the_model(device: torch.device) -> None:
    host, ours = twins(32, device)
    table = torch.tensor(TABLE[:1], dtype=torch.int32, device=device)
    found = digest_blocks(ours.words, range(1), TokenRange(0, 32), table, first_head=6)
    expected = digest(host.words[0, TABLE[0]], layer=0, first_token=0, first_head=6)
    assert int(found[0, 0]) & ((1 << 64) - 1) == expected


@pytest.mark.parametrize("kernels", [TritonBlocks(), TorchBlocks()])
def test_staged_words_are_found_by_the_layer_and_block_they_begin_with(kernels: Any, device: torch.device) -> None:
    _, ours = twins(32, device)
    piece = LandedPiece(range(1, 2), range(3, 5), TokenRange(0, 140), 32, num_slots=2)
    _, whole = landed_words(piece, 2, 10, device)
    table = torch.tensor(TABLE, dtype=torch.int32, device=device)
    expected = kernels.copy_in(Landed(whole), ours.words, piece, table)
    copied = ours.words.clone()
    staged = Landed(whole[1:2, [1, 0]].contiguous(), first_layer=1, first_block=3)
    assert torch.equal(kernels.copy_in(staged, ours.words, piece, table), expected)
    assert torch.equal(ours.words, copied)
