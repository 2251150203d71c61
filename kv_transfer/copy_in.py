"""What the handoff asks of a node's KV memory, as a Protocol: copy a landed piece into blocks, and digest blocks."""

from collections.abc import Sequence
from typing import Protocol

from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.landed_piece import LandedPiece as LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange


class KVMemory(Protocol):
    """The KV cache of one node, as `kv_transfer` sees it. Calls may come from any thread but the engine's.

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
