"""What the handoff asks of a node's KV cache: where it lies, copying a landed piece in, and digesting blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange


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
