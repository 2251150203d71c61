"""The device's KV cache does to the byte what the host's does, and digests alike."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.digest import Words
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.engine import torch_kv_cache
from twostep.engine.kernels import reference_blocks
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.torch_kv_cache import TorchKVCache

NUM_LAYERS, NUM_HEADS, HEAD_DIM, NUM_BLOCKS = 3, 2, 4, 20


def twins(block_tokens: int, seed: int = 0) -> tuple[HostKVCache, TorchKVCache]:
    layout = KVLayout(NUM_LAYERS, NUM_HEADS, HEAD_DIM, block_tokens, "bfloat16")
    host, device = HostKVCache(layout, NUM_BLOCKS), TorchKVCache(layout, NUM_BLOCKS, torch.device("cpu"))
    host.words[:] = noise(host.words.shape, seed)
    device.words.copy_(torch.from_numpy(host.words.view(np.int32)))
    return host, device


def noise(shape: tuple[int, ...], seed: int) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, dtype=np.uint32)


def words_of(cache: TorchKVCache) -> Words:
    return cache.words.numpy().view(np.uint32)


def region(words: Words) -> MemoryRegion:
    return MemoryRegion(words.ctypes.data, words.nbytes)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[int, LandedPiece]:
    """A block size of the cache, and a piece that may land there."""
    block_tokens, source_block_tokens = draw(st.sampled_from([32, 64])), draw(st.sampled_from([32, 64]))
    start = 64 * draw(st.integers(0, 3))
    missing = TokenRange(start, draw(st.integers(start + 1, start + 300)))
    num_source_blocks = -(-len(missing) // source_block_tokens)
    first = draw(st.integers(0, num_source_blocks - 1))
    source_blocks = range(first, draw(st.integers(first + 1, num_source_blocks)))
    first_layer = draw(st.integers(0, NUM_LAYERS - 1))
    layers = range(first_layer, draw(st.integers(first_layer + 1, NUM_LAYERS)))
    num_slots = draw(st.integers(len(source_blocks), num_source_blocks))
    return block_tokens, LandedPiece(layers, source_blocks, missing, source_block_tokens, num_slots)


@given(pieces())
def test_copies_and_their_digests_are_those_of_the_host_cache(case: tuple[int, LandedPiece]) -> None:
    block_tokens, piece = case
    host, device = twins(block_tokens)
    table = [BlockId(int(block)) for block in np.random.default_rng(1).permutation(NUM_BLOCKS)]
    extent = noise((NUM_LAYERS, piece.num_slots, NUM_HEADS, piece.source_block_tokens, HEAD_DIM), seed=2)
    digests = device.copy_in(region(extent), piece, table)
    np.testing.assert_array_equal(digests, host.copy_in(region(extent), piece, table))
    np.testing.assert_array_equal(words_of(device), host.words)


@given(st.sampled_from([32, 64]), st.integers(0, 300), st.integers(0, 300), st.sampled_from([range(3), range(1, 2)]))
def test_digests_are_those_of_the_host_cache(block_tokens: int, start: int, length: int, layers: range) -> None:
    host, device = twins(block_tokens)
    table = [BlockId(block) for block in reversed(range(NUM_BLOCKS))]
    tokens = TokenRange(start, start + length)
    np.testing.assert_array_equal(device.digest(layers, tokens, table), host.digest(layers, tokens, table))


def test_a_digest_over_more_words_than_fit_at_once_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_blocks, "WORDS_AT_ONCE", 100)
    host, device = twins(32)
    table, tokens = [BlockId(4), BlockId(1), BlockId(7)], TokenRange(3, 90)
    np.testing.assert_array_equal(device.digest(range(3), tokens, table), host.digest(range(3), tokens, table))


def test_the_region_is_the_pool_and_can_be_seen_as_words() -> None:
    _, device = twins(32)
    assert device.region() == MemoryRegion(device.words.data_ptr(), NUM_BLOCKS * device.layout.block_bytes)
    assert torch.equal(torch_kv_cache.view_words(device.region()), device.words.flatten())


def test_an_extent_of_the_wrong_size_and_a_range_beyond_the_table_are_refused() -> None:
    _, device = twins(32)
    extent = noise((NUM_LAYERS, 2, NUM_HEADS, 32, HEAD_DIM), seed=2)
    with pytest.raises(ValueError, match="cannot have the shape"):
        device.copy_in(region(extent), LandedPiece(range(3), range(1), TokenRange(0, 32), 32, 1), [BlockId(6)])
    for missing in (TokenRange(16, 48), TokenRange(0, 65)):
        with pytest.raises(ValueError, match="does not fit a table of 2 blocks"):
            device.copy_in(region(extent), LandedPiece(range(3), range(2), missing, 32, 2), [BlockId(6), BlockId(7)])
