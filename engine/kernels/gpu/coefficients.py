"""The coefficients of `core.digest`, and the digest of words that a program holds: shared by copies and digests of blocks."""

import triton
import triton.language as tl

from twostep.engine.kernels.gpu.bits import splitmix64


@triton.jit
def word_coefficients(layer, head, words):
    """Return `core.digest.word_coefficients` of one head of one layer for `words` [word], as uint64."""
    counter = ((layer + 1).to(tl.uint64) << 44) | (head.to(tl.uint64) << 28) | words.to(tl.uint64)
    return splitmix64(counter) | 1


@triton.jit
def token_coefficients(positions):
    """Return `core.digest.token_coefficients` of `positions` [token], as uint64."""
    return splitmix64(positions.to(tl.uint64) | tl.full([1], 1 << 63, tl.uint64)) | 1


@triton.jit
def digest_of(values, by_word, by_token):
    """Return the digest, as int64, of int32 `values` [token, word]; those that do not count are zero."""
    wide = values.to(tl.uint32, bitcast=True).to(tl.uint64)
    per_token = tl.sum((wide * by_word[None, :]).to(tl.int64, bitcast=True), axis=1)
    return tl.sum(per_token * by_token.to(tl.int64, bitcast=True), axis=0)
