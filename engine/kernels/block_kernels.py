"""The seam between a KV cache on a device and what moves and digests its blocks: Triton's kernels, or torch alone.

A pool's words are int32 [layer, block, kv_head, token, word]; digests are int64 with the bits of `core.digest`'s.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from twostep.core.kv_memory import LandedPiece
from twostep.core.ticket import TokenRange


@dataclass(frozen=True, slots=True)
class Landed:
    """Words that P wrote, int32 [layer, slot, head, token, word].

    They begin with layer `first_layer` and with P's block number `first_block` of the range; blocks go round the slots.
    """

    words: Tensor
    first_layer: int = 0
    first_block: int = 0


class BlockKernels(Protocol):
    def copy_in(self, landed: Landed, words: Tensor, piece: LandedPiece, table: Tensor) -> Tensor:
        """Copy `piece` into the pool's `words`; return the digests of the copy [layer, source block]; see `KVMemory.copy_in`.

        `table` int32 [block] is the request's whole block table, on the pool's device.
        """

    def digest(self, words: Tensor, layers: range, tokens: TokenRange, table: Tensor) -> Tensor:
        """Return the digests of `tokens` as they lie in the pool's `words`: [layer, block]; see `KVMemory.digest`."""
