"""Digests KV blocks where they lie."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from twostep.core.ticket import TokenRange
from twostep.engine.kernels.gpu.coefficients import digest_of, token_coefficients, word_coefficients
from twostep.engine.kernels.gpu.launches import launch_of


@triton.jit(
    do_not_specialize=["first_token", "end_token", "first_column", "num_columns", "num_blocks", "first_layer", "first_head"]
)
def _digest_blocks(
    pool, table, digests, first_token, end_token, first_column, num_columns, num_blocks, first_layer, first_head,
    HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WORDS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program for one head of one block in one layer. Sums modulo 2^64 come out alike in any order."""
    column = tl.program_id(0)
    head = tl.program_id(1)
    layer = tl.program_id(2)
    block = tl.load(table + first_column + column).to(tl.int64)
    words = tl.arange(0, WIDTH)
    by_word = word_coefficients(first_layer + layer, first_head + head, words)
    line = (((first_layer + layer).to(tl.int64) * num_blocks + block) * HEADS + head) * BLOCK_TOKENS
    begin = (first_column + column) * BLOCK_TOKENS
    digest = tl.zeros([1], tl.int64)
    for first in tl.range(0, BLOCK_TOKENS, TILE):
        places = first + tl.arange(0, TILE)
        positions = begin + places
        counts = (places < BLOCK_TOKENS) & (positions >= first_token) & (positions < end_token)
        mask = counts[:, None] & (words < WORDS)[None, :]
        values = tl.load(pool + (line + places)[:, None] * WORDS + words[None, :], mask=mask, other=0)
        digest += digest_of(values, by_word, token_coefficients(positions))
    tl.atomic_add(digests + layer * num_columns + column + tl.arange(0, 1), digest)


def digest_blocks(words: Tensor, layers: range, tokens: TokenRange, table: Tensor, *, first_head: int = 0) -> Tensor:
    """See `BlockKernels.digest`; heads are numbered from `first_head` on."""
    _, num_blocks, num_heads, block_tokens, num_words = words.shape
    first_column = tokens.start // block_tokens
    num_columns = triton.cdiv(tokens.end, block_tokens) - first_column if len(tokens) else 0
    digests = torch.zeros((len(layers), num_columns), dtype=torch.int64, device=words.device)
    if not num_columns:
        return digests
    launch = launch_of(words.device, "digest", "any")
    _digest_blocks[(num_columns, num_heads, len(layers))](
        words, table, digests, tokens.start, tokens.end, first_column, num_columns, num_blocks, layers.start, first_head,
        HEADS=num_heads, BLOCK_TOKENS=block_tokens, WORDS=num_words, WIDTH=triton.next_power_of_2(num_words),
        TILE=launch.tile, num_warps=launch.num_warps,
    )  # fmt: skip
    return digests
