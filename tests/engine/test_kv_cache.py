"""Copies out of a landing extent, and digests, against the plain definitions."""

import mmap

import numpy as np
import pytest

from twostep.core.digest import Digests, Words, digest
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.engine.kv_cache import HostKVCache

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 3, 2, 4


def noisy_cache(block_tokens: int = 32, num_blocks: int = 12, seed: int = 0) -> HostKVCache:
    cache = HostKVCache(KVLayout(NUM_LAYERS, NUM_HEADS, HEAD_DIM, block_tokens, "bfloat16"), num_blocks)
    cache.words[:] = np.random.default_rng(seed).integers(0, 1 << 32, cache.words.shape, dtype=np.uint32)
    return cache


def noisy_extent(num_slots: int, source_block_tokens: int, seed: int = 1) -> Words:
    shape = (NUM_LAYERS, num_slots, NUM_HEADS, source_block_tokens, HEAD_DIM)
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, dtype=np.uint32)


def region(words: Words) -> MemoryRegion:
    return MemoryRegion(words.ctypes.data, words.nbytes)


def table_of(*blocks: int) -> list[BlockId]:
    return [BlockId(block) for block in blocks]


def lying(cache: HostKVCache, layer: int, tokens: TokenRange, table: list[BlockId]) -> Words:
    """Return the words [head, token, word] of `tokens` as they lie in the blocks, gathered token by token."""
    size = cache.layout.block_tokens
    columns = [cache.words[layer, table[t // size], :, t % size] for t in range(tokens.start, tokens.end)]
    return np.stack(columns, axis=1)


def landed(extent: Words, layer: int, piece: LandedPiece, tokens: TokenRange) -> Words:
    """Return the words [head, token, word] of `tokens` as they lie in the extent, gathered token by token."""
    places = [divmod(t - piece.missing.start, piece.source_block_tokens) for t in range(tokens.start, tokens.end)]
    return np.stack([extent[layer, block % piece.num_slots, :, at] for block, at in places], axis=1)


def expected_digests(extent: Words, piece: LandedPiece) -> Digests:
    ranges = [piece.tokens_of(block) for block in piece.source_blocks]
    return np.array(
        [
            [digest(landed(extent, layer, piece, tokens), layer=layer, first_token=tokens.start) for tokens in ranges]
            for layer in piece.layers
        ],
        dtype=np.uint64,
    )


def test_the_pool_begins_at_a_page_and_is_zero() -> None:
    cache = HostKVCache(KVLayout(NUM_LAYERS, NUM_HEADS, HEAD_DIM, 32, "float32"), 5)
    assert cache.region().address % mmap.PAGESIZE == 0
    assert cache.region().num_bytes == 5 * cache.layout.block_bytes
    assert cache.words.shape == (NUM_LAYERS, 5, NUM_HEADS, 32, 2 * HEAD_DIM)
    assert not cache.words.any()


@pytest.mark.parametrize(
    ("start", "end"), [(0, 128), (0, 100), (32, 100), (5, 9), (31, 33), (40, 60), (0, 1), (127, 128), (64, 64)]
)
def test_a_digest_of_blocks_equals_the_definition(start: int, end: int) -> None:
    cache, table = noisy_cache(), table_of(7, 2, 9, 4)
    first_block, end_block = start // 32, -(-end // 32)
    expected = np.array(
        [
            [
                digest(lying(cache, layer, part, table), layer=layer, first_token=part.start)
                for part in (TokenRange(max(start, 32 * b), min(end, 32 * b + 32)) for b in range(first_block, end_block))
            ]
            for layer in range(1, 3)
        ],
        dtype=np.uint64,
    ).reshape(2, end_block - first_block)
    np.testing.assert_array_equal(cache.digest(range(1, 3), TokenRange(start, end), table), expected)


def test_digests_of_parts_of_a_block_add_up() -> None:
    cache, table, layers = noisy_cache(), table_of(3), range(NUM_LAYERS)
    parts = [cache.digest(layers, TokenRange(*part), table) for part in ((0, 7), (7, 20), (20, 32))]
    np.testing.assert_array_equal(sum(parts), cache.digest(layers, TokenRange(0, 32), table))


def test_a_digest_over_more_words_than_fit_at_once_is_the_same() -> None:
    layout = KVLayout(4, 8, 64, 64, "float32")
    cache = HostKVCache(layout, 3)
    cache.words[:] = np.random.default_rng(0).integers(0, 1 << 32, cache.words.shape, dtype=np.uint32)
    table, layers = table_of(2, 0, 1), range(4)
    whole = cache.digest(layers, TokenRange(0, 192), table)
    for layer in layers:
        for block in range(3):
            tokens = TokenRange(64 * block, 64 * block + 64)
            plain = digest(cache.words[layer, table[block]], layer=layer, first_token=tokens.start)
            assert whole[layer, block] == plain


@pytest.mark.parametrize("source_block_tokens", [32, 64, 96])
@pytest.mark.parametrize("block_tokens", [32, 64, 96])
@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 96, 192, 250])
def test_a_landed_range_is_copied_whatever_the_block_sizes(
    source_block_tokens: int, block_tokens: int, num_tokens: int
) -> None:
    start = 576  # a multiple of all sizes
    missing = TokenRange(start, start + num_tokens)
    num_slots = -(-num_tokens // source_block_tokens)
    cache, extent = noisy_cache(block_tokens, num_blocks=40), noisy_extent(num_slots, source_block_tokens)
    table = table_of(*reversed(range(40)))
    piece = LandedPiece(range(NUM_LAYERS), range(num_slots), missing, source_block_tokens, num_slots)
    digests = cache.copy_in(region(extent), piece, table)
    for layer in range(NUM_LAYERS):
        copied = lying(cache, layer, missing, table)
        np.testing.assert_array_equal(copied, landed(extent, layer, piece, missing))
    np.testing.assert_array_equal(digests, expected_digests(extent, piece))


def test_only_the_piece_is_touched_and_the_tail_is_zeroed() -> None:
    cache, extent, table = noisy_cache(), noisy_extent(3, 32), table_of(8, 1, 5, 3)
    before = cache.words.copy()
    piece = LandedPiece(range(1, 2), range(1, 3), TokenRange(32, 32 + 70), 32, 3)
    cache.copy_in(region(extent), piece, table)
    expected = before.copy()
    expected[1, 5] = extent[1, 1]
    expected[1, 3, :, :6] = extent[1, 2, :, :6]
    expected[1, 3, :, 6:] = 0
    np.testing.assert_array_equal(cache.words, expected)


def test_a_full_last_block_leaves_its_neighbour_alone() -> None:
    cache, extent, table = noisy_cache(), noisy_extent(1, 32), table_of(8, 1)
    before = cache.words.copy()
    cache.copy_in(region(extent), LandedPiece(range(NUM_LAYERS), range(1), TokenRange(0, 32), 32, 1), table)
    np.testing.assert_array_equal(cache.words[:, 1], before[:, 1])


def test_pieces_of_one_range_may_come_in_any_order() -> None:
    extent, table, missing = noisy_extent(4, 32), table_of(4, 9), TokenRange(0, 100)
    in_order, shuffled = noisy_cache(64), noisy_cache(64)
    for cache, blocks in ((in_order, (0, 1, 2, 3)), (shuffled, (3, 1, 0, 2))):
        for block in blocks:
            cache.copy_in(region(extent), LandedPiece(range(3), range(block, block + 1), missing, 32, 4), table)
    np.testing.assert_array_equal(in_order.words, shuffled.words)


def test_a_ring_gives_each_block_from_its_slot() -> None:
    cache, table, missing = noisy_cache(), table_of(0, 1, 2, 3, 4), TokenRange(0, 160)
    extent = noisy_extent(2, 32)
    piece = LandedPiece(range(NUM_LAYERS), range(3, 5), missing, 32, num_slots=2)
    digests = cache.copy_in(region(extent), piece, table)
    np.testing.assert_array_equal(cache.words[:, 3], extent[:, 1])
    np.testing.assert_array_equal(cache.words[:, 4], extent[:, 0])
    np.testing.assert_array_equal(digests, expected_digests(extent, piece))


def test_the_digest_is_that_of_the_copy_not_of_the_source() -> None:
    cache, extent, table = noisy_cache(), noisy_extent(1, 32), table_of(6)
    piece = LandedPiece(range(NUM_LAYERS), range(1), TokenRange(0, 32), 32, 1)
    digests = cache.copy_in(region(extent), piece, table)
    np.testing.assert_array_equal(digests, cache.digest(range(NUM_LAYERS), TokenRange(0, 32), table))
    cache.words[1, 6, 0, 0, 0] ^= 1
    assert (digests != cache.digest(range(NUM_LAYERS), TokenRange(0, 32), table)).sum() == 1


def test_an_extent_of_the_wrong_size_is_refused() -> None:
    extent = noisy_extent(2, 32)
    piece = LandedPiece(range(NUM_LAYERS), range(1), TokenRange(0, 32), 32, 1)
    with pytest.raises(ValueError, match="cannot have the shape"):
        noisy_cache().copy_in(region(extent), piece, table_of(6))


@pytest.mark.parametrize("missing", [TokenRange(16, 48), TokenRange(0, 65)])
def test_a_range_that_does_not_fit_the_table_is_refused(missing: TokenRange) -> None:
    extent = noisy_extent(3, 32)
    with pytest.raises(ValueError, match="does not fit a table of 2 blocks"):
        noisy_cache().copy_in(region(extent), LandedPiece(range(3), range(3), missing, 32, 3), table_of(6, 7))
