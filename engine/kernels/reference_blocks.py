"""Copies and digests of blocks in plain torch: what a cache in host memory uses, and what the kernels are compared with.

torch has no arithmetic for unsigned 64-bit numbers: digests are computed in int64, which wraps alike.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostep.core.digest import Digests, layer_coefficients, token_coefficients
from twostep.core.kv_memory import LandedPiece
from twostep.core.ticket import TokenRange
from twostep.engine.kernels.block_kernels import Landed

Owners = NDArray[np.int64]
WORDS_AT_ONCE = 1 << 24
"""How many words a digest widens to 64 bits at a time: 128 MiB of the device."""


class TorchBlocks:
    """Implements `BlockKernels`."""

    def copy_in(self, landed: Landed, words: Tensor, piece: LandedPiece, table: Tensor) -> Tensor:
        tokens = TokenRange(piece.tokens_of(piece.source_blocks[0]).start, piece.tokens_of(piece.source_blocks[-1]).end)
        numbers, at = divmod(np.arange(tokens.start, tokens.end) - piece.missing.start, piece.source_block_tokens)
        layers = slice(piece.layers.start, piece.layers.stop)
        landed_layers = slice(piece.layers.start - landed.first_layer, piece.layers.stop - landed.first_layer)
        slots = (numbers - landed.first_block) % landed.words.shape[1]
        blocks, offsets = _places(words, tokens, table)
        words[layers, blocks, :, offsets] = landed.words[landed_layers, slots, :, at]
        if tokens.end == piece.missing.end:
            _zero_tail(words, layers, tokens.end, table)
        return _digests(words, piece.layers, tokens, table, numbers - piece.source_blocks.start)

    def digest(self, words: Tensor, layers: range, tokens: TokenRange, table: Tensor) -> Tensor:
        size = words.shape[3]
        return _digests(words, layers, tokens, table, np.arange(tokens.start, tokens.end) // size - tokens.start // size)


def _zero_tail(words: Tensor, layers: slice, end: int, table: Tensor) -> None:
    block, at = divmod(end, words.shape[3])
    if at:
        words[layers, int(table[block]), :, at:] = 0


def _places(words: Tensor, tokens: TokenRange, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the block and the place in it of each token, each [token]."""
    positions = torch.arange(tokens.start, tokens.end, device=words.device)
    return table[positions // words.shape[3]].long(), positions % words.shape[3]


def _digests(words: Tensor, layers: range, tokens: TokenRange, table: Tensor, owners: Owners) -> Tensor:
    """Return the digests of `tokens` as int64 [layer, owner], where `owners` [token] says which sum a token joins."""
    _, _, num_heads, _, num_words = words.shape
    blocks, offsets = _places(words, tokens, table)
    by_word = _signed(layer_coefficients(layers.start, len(layers), num_heads, num_words)).to(words.device)
    by_token = _signed(token_coefficients(tokens.start, len(tokens))).to(words.device)
    num_owners = int(owners[-1]) + 1 if len(owners) else 0
    sums = torch.zeros((num_owners, len(layers)), dtype=torch.int64, device=words.device)
    joins = torch.from_numpy(owners).to(words.device)
    step = max(1, WORDS_AT_ONCE // by_word.numel())
    for start in range(0, len(tokens), step):
        some = slice(start, start + step)
        wide = words[layers.start : layers.stop, blocks[some], :, offsets[some]].long() & 0xFFFFFFFF
        sums.index_add_(0, joins[some], (wide * by_word).sum((2, 3)) * by_token[some, None])
    return sums.T


def _signed(coefficients: Digests) -> Tensor:
    return torch.from_numpy(coefficients.view(np.int64).copy())
