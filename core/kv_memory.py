"""What the handoff asks of a node's KV cache: where it lies, copying a landed piece in, and digesting blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange

Units = NDArray[np.int32]
"""Indices of pieces of memory of equal size, counted from its start."""


@dataclass(frozen=True, slots=True)
class LandedPiece:
    """Some of P's blocks, in some layers, as they lie in a landing extent.

    `source_blocks` counts P's blocks within `missing`; `num_slots` and `source_block_tokens` give the extent's shape
    `[layer][slot][kv_head][token][k|v][dim]`.
    """

    layers: range
    source_blocks: range
    missing: TokenRange
    source_block_tokens: int
    num_slots: int

    def tokens_of(self, source_block: int) -> TokenRange:
        """Return the positions that P's block number `source_block` of the range holds; the last may be partial."""
        start = self.missing.start + source_block * self.source_block_tokens
        return TokenRange(start, min(start + self.source_block_tokens, self.missing.end))


class OpenMemory(Protocol):
    """Memory of a node, on the host or on a device, that others may write into. It lives as long as this does."""

    def region(self) -> MemoryRegion: ...

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return what lies there now, wherever that is."""


class Staged(Protocol):
    """Units of the pool on their way into host memory."""

    def is_done(self) -> bool: ...


class Staging(Protocol):
    """Host memory of a few slots, each for one unit of a pool, which transports can read where they cannot read the pool."""

    @property
    def num_slots(self) -> int: ...

    def region(self) -> MemoryRegion: ...

    def copy(self, units: Units, first_slot: int) -> Staged:
        """Begin to copy units of the pool into the slots from `first_slot` on, beside everything that the device computes."""


class KVMemory(Protocol):
    """The KV cache of one node. Calls may come from any thread.

    The blocks named belong to the caller's request alone; the engine does not touch them meanwhile.
    """

    @property
    def layout(self) -> KVLayout: ...

    def region(self) -> MemoryRegion:
        """Return the whole pool, laid out as `layout.pool_shape`; P registers it as the source of its writes."""

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        """Copy `piece` from the landing extent into the blocks of `table` and return the digests of the *copy*.

        `table` is the request's whole block table, from position 0. Digests are uint64 [layer, source block], over valid
        tokens only. The tail of the last block beyond `missing.end` is zeroed.
        """

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        """Return the digests of `tokens` as they lie in the blocks of `table`: uint64 [layer, block].

        The second axis counts this node's own blocks that `tokens` touches; digests of parts of a block add up.
        """
