"""Copies landed KV into the blocks of a request and digests the copy on the way, in one pass over the bytes.

Each word is read from the landing extent once, into a register, and both stored and digested from there: a write that lands
later can spoil the extent, and never the copy unseen.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from twostep.core.kv_memory import LandedPiece
from twostep.engine.kernels.block_kernels import Landed
from twostep.engine.kernels.gpu.coefficients import digest_of, token_coefficients, word_coefficients
from twostep.engine.kernels.gpu.launches import launch_of

PER_PIECE = [
    *("start", "end", "tail_end", "first_block", "first_layer", "num_source_blocks"),
    *("landed_block", "landed_layer", "num_slots", "num_blocks", "to_head", "first_head"),
]


@triton.jit(do_not_specialize=PER_PIECE)
def _copy_in(
    source, pool, table, digests, start, end, tail_end, first_block, first_layer, num_source_blocks,
    landed_block, landed_layer, num_slots, num_blocks, to_head, first_head,
    SOURCE_HEADS: tl.constexpr, HEADS: tl.constexpr, SOURCE_TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    WORDS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program for one head of one of P's blocks in one layer; that of the range's last block zeroes the tail."""
    column = tl.program_id(0)
    head = tl.program_id(1)
    layer = first_layer + tl.program_id(2)
    number = first_block + column
    words = tl.arange(0, WIDTH)
    by_word = word_coefficients(layer, first_head + head, words)
    inside = (words < WORDS)[None, :]
    slot = (number - landed_block) % num_slots
    landed = (((layer - landed_layer).to(tl.int64) * num_slots + slot) * SOURCE_HEADS + head) * SOURCE_TOKENS
    begin = start + number * SOURCE_TOKENS
    stop = tl.minimum(begin + SOURCE_TOKENS, end)
    digest = tl.zeros([1], tl.int64)
    for first in tl.range(0, SOURCE_TOKENS, TILE):
        places = first + tl.arange(0, TILE)
        positions = begin + places
        exists = (places < SOURCE_TOKENS) & (positions < stop)
        mask = exists[:, None] & inside
        values = tl.load(source + (landed + places)[:, None] * WORDS + words[None, :], mask=mask, other=0)
        block = tl.load(table + positions // BLOCK_TOKENS, mask=exists, other=0).to(tl.int64)
        line = ((layer.to(tl.int64) * num_blocks + block) * HEADS + to_head + head) * BLOCK_TOKENS
        tl.store(pool + (line + positions % BLOCK_TOKENS)[:, None] * WORDS + words[None, :], values, mask=mask)
        digest += digest_of(values, by_word, token_coefficients(positions))
    tl.atomic_add(digests + tl.program_id(2) * num_source_blocks + column + tl.arange(0, 1), digest)
    if stop == end:
        for first in tl.range(end, tail_end, TILE):
            positions = first + tl.arange(0, TILE)
            exists = positions < tail_end
            block = tl.load(table + positions // BLOCK_TOKENS, mask=exists, other=0).to(tl.int64)
            line = ((layer.to(tl.int64) * num_blocks + block) * HEADS + to_head + head) * BLOCK_TOKENS
            target = pool + (line + positions % BLOCK_TOKENS)[:, None] * WORDS + words[None, :]
            tl.store(target, tl.zeros([TILE, WIDTH], tl.int32), mask=exists[:, None] & inside)


def copy_in(
    landed: Landed, words: Tensor, piece: LandedPiece, table: Tensor, *, to_head: int = 0, first_head: int = 0
) -> Tensor:
    """See `BlockKernels.copy_in`.

    Where P's heads are some of the pool's, they go to those from `to_head` on; digests number them from `first_head` on.
    """
    _, num_blocks, num_heads, block_tokens, num_words = words.shape
    _, num_slots, num_source_heads, source_tokens, _ = landed.words.shape
    num_layers, num_source_blocks = len(piece.layers), len(piece.source_blocks)
    digests = torch.zeros((num_layers, num_source_blocks), dtype=torch.int64, device=words.device)
    launch = launch_of(words.device, "digest", "any")
    end = piece.missing.end
    _copy_in[(num_source_blocks, num_source_heads, num_layers)](
        landed.words, words, table, digests, piece.missing.start, end, triton.cdiv(end, block_tokens) * block_tokens,
        piece.source_blocks.start, piece.layers.start, num_source_blocks,
        landed.first_block, landed.first_layer, num_slots, num_blocks, to_head, first_head,
        SOURCE_HEADS=num_source_heads, HEADS=num_heads, SOURCE_TOKENS=source_tokens, BLOCK_TOKENS=block_tokens,
        WORDS=num_words, WIDTH=triton.next_power_of_2(num_words), TILE=launch.tile, num_warps=launch.num_warps,
    )  # fmt: skip
    return digests
