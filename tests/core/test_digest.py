"""Digests are compared across nodes that see the same tokens in other pieces: what must add up, and what must not cancel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.digest import Words, digest, splitmix64, token_coefficients, word_coefficients

HEADS, TOKENS, WORDS = 3, 10, 4
MODULUS = 1 << 64


def random_words(seed: int = 0) -> Words:
    """Return KV words [head, token, word]."""
    return np.random.default_rng(seed).integers(0, 1 << 32, size=(HEADS, TOKENS, WORDS), dtype=np.uint32)


def whole(words: Words) -> int:
    return digest(words, layer=5, first_token=100)


def test_splitmix64_gives_the_published_sequence_of_seed_0() -> None:
    counters = np.arange(1, 4, dtype=np.uint64)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(counters).tolist() == published


def test_every_coefficient_is_odd() -> None:
    assert np.all(word_coefficients(3, 8, 64) & np.uint64(1))
    assert np.all(token_coefficients(0, 1000) & np.uint64(1))


def test_coefficients_of_layers_heads_words_and_tokens_are_all_different() -> None:
    by_word = np.concatenate([word_coefficients(layer, 8, 32).ravel() for layer in range(30)])
    assert len(np.unique(np.concatenate([by_word, token_coefficients(0, 8192)]))) == 30 * 8 * 32 + 8192


def test_the_digest_is_the_sum_of_coefficient_times_word() -> None:
    words = random_words()
    by_word, by_token = word_coefficients(5, HEADS, WORDS), token_coefficients(100, TOKENS)
    expected = sum(
        int(by_word[head, word]) * int(by_token[token]) * int(words[head, token, word])
        for head, token, word in np.ndindex(words.shape)
    )
    assert whole(words) == expected % MODULUS


@given(st.integers(1, TOKENS - 1))
def test_digests_of_token_runs_add_up(cut: int) -> None:
    words = random_words()
    left = digest(words[:, :cut], layer=5, first_token=100)
    right = digest(words[:, cut:], layer=5, first_token=100 + cut)
    assert (left + right) % MODULUS == whole(words)


@given(st.integers(1, HEADS - 1))
def test_digests_of_head_ranges_add_up(cut: int) -> None:
    words = random_words()
    left = digest(words[:cut], layer=5, first_token=100)
    right = digest(words[cut:], layer=5, first_token=100, first_head=cut)
    assert (left + right) % MODULUS == whole(words)


@given(st.integers(0, HEADS - 1), st.integers(0, TOKENS - 1), st.integers(0, WORDS - 1), st.integers(1, (1 << 32) - 1))
def test_a_change_of_any_single_word_always_shows(head: int, token: int, word: int, flip: int) -> None:
    words = random_words()
    changed = words.copy()
    changed[head, token, word] ^= np.uint32(flip)
    assert whole(changed) != whole(words)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_swapping_any_two_heads_tokens_or_words_shows(axis: int) -> None:
    words = random_words()
    size = words.shape[axis]
    for first in range(size):
        for second in range(first + 1, size):
            order = np.arange(size)
            order[[first, second]] = second, first
            assert whole(np.take(words, order, axis=axis)) != whole(words)


def test_the_same_words_elsewhere_have_another_digest() -> None:
    words = random_words()
    elsewhere = {
        digest(words, layer=5, first_token=100),
        digest(words, layer=6, first_token=100),
        digest(words, layer=5, first_token=101),
        digest(words, layer=5, first_token=100, first_head=1),
    }
    assert len(elsewhere) == 4


def test_no_words_and_zero_words_digest_to_zero() -> None:
    words = random_words()
    assert digest(words[:, :0], layer=5, first_token=100) == 0
    assert whole(np.zeros_like(words)) == 0


def test_shared_coefficients_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        word_coefficients(0, 1, 1)[0, 0] = 0
