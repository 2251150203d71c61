"""The digest of KV contents: what proves that the bytes D attaches are the bytes that P computed.

The digest of a set of tokens in one layer is the sum over heads, tokens and 32-bit words of `c * word` modulo 2^64, where
the odd coefficient `c = word_coefficient[layer, head, word] * token_coefficient[token]` is pseudo-random (multilinear
hashing, Carter and Wegman 1979). A sum adds up over heads, ranks, tokens and chunks, so nodes of different block sizes or
head ranges compare digests without agreeing on a layout, and a permuted head or token changes it.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DIGEST_VERSION = "multilinear64:v1"
PAGE_TOKENS = 4096

Words = NDArray[np.uint32]
Digests = NDArray[np.uint64]


def splitmix64(counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 output for each counter (Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = counter * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=512)
def word_coefficients(layer: int, num_heads: int, num_words: int, first_head: int = 0) -> Digests:
    """Return the odd coefficients of one layer as read-only uint64 [head, word]; heads are numbered over all ranks."""
    heads = np.arange(first_head, first_head + num_heads, dtype=np.uint64)[:, None]
    words = np.arange(num_words, dtype=np.uint64)[None, :]
    counter = (np.uint64(layer + 1) << np.uint64(44)) | (heads << np.uint64(28)) | words
    coefficients = splitmix64(counter) | np.uint64(1)
    coefficients.setflags(write=False)
    return coefficients


def token_coefficients(first_token: int, num_tokens: int) -> Digests:
    """Return the odd coefficients of a run of positions as read-only uint64 [token]."""
    page, start = divmod(first_token, PAGE_TOKENS)
    end = start + num_tokens
    if end <= PAGE_TOKENS:
        return _token_page(page)[start:end]
    pages = [_token_page(one) for one in range(page, page + -(-end // PAGE_TOKENS))]
    return np.concatenate(pages)[start:end]


@lru_cache(maxsize=64)
def _token_page(page: int) -> Digests:
    """Return the coefficients of `PAGE_TOKENS` positions: most runs are short, and there are many."""
    positions = np.arange(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS, dtype=np.uint64)
    coefficients = splitmix64(positions | np.uint64(1 << 63)) | np.uint64(1)
    coefficients.setflags(write=False)
    return coefficients


@lru_cache(maxsize=128)
def layer_coefficients(first_layer: int, num_layers: int, num_heads: int, num_words: int, first_head: int = 0) -> Digests:
    """Return the `word_coefficients` of consecutive layers as read-only uint64 [layer, head, word]."""
    layers = range(first_layer, first_layer + num_layers)
    coefficients = np.stack([word_coefficients(layer, num_heads, num_words, first_head) for layer in layers])
    coefficients.setflags(write=False)
    return coefficients


def digest(words: Words, *, layer: int, first_token: int, first_head: int = 0) -> int:
    """Return the digest of `words` [head, token, word], whose first token stands at position `first_token`."""
    by_token = token_coefficients(first_token, words.shape[1])
    return int(digest_blocks(words[None, None], by_token, first_layer=layer, first_head=first_head)[0, 0])


def digest_blocks(words: Words, by_token: Digests, *, first_layer: int, first_head: int = 0) -> Digests:
    """Return the digests of `words` [layer, block, head, token, word] as uint64 [layer, block].

    `by_token` are the `token_coefficients` of all tokens, block after block.
    """
    num_layers, num_blocks, num_heads, num_tokens, num_words = words.shape
    by_word = layer_coefficients(first_layer, num_layers, num_heads, num_words, first_head)
    per_token = np.einsum("lbhtw,lhw->lbt", words.astype(np.uint64), by_word)
    return np.asarray((per_token * by_token.reshape(num_blocks, num_tokens)).sum(axis=-1))
