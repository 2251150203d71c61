"""Decides which cells of a leg are written next, and between which addresses. Pure."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from twostep.core.ids import BlockId
from twostep.kv_transfer.pieces import Coverage, Piece
from twostep.kv_transfer.transport import Units


@dataclass(frozen=True, slots=True)
class UnitMap:
    """Where a leg's cells lie: in P's pool of `num_pool_blocks` blocks a layer, and in D's landing extent.

    `blocks` are P's blocks of the missing range; `first_unit` is where the extent starts, in units of the landing pool.
    """

    blocks: tuple[BlockId, ...]
    num_pool_blocks: int
    first_unit: int
    num_slots: int

    def units(self, piece: Piece) -> tuple[Units, Units]:
        """Return source and landing units of the piece's cells, layer by layer."""
        layers = np.arange(piece.layers.start, piece.layers.stop, dtype=np.int32)[:, None]
        slots = np.arange(piece.blocks.start, piece.blocks.stop, dtype=np.int32) % self.num_slots
        sources = np.array(self.blocks[piece.blocks.start : piece.blocks.stop], np.int32)
        source_units = layers * np.int32(self.num_pool_blocks) + sources
        landing_units = np.int32(self.first_unit) + layers * np.int32(self.num_slots) + slots
        return source_units.ravel(), landing_units.ravel()


class PushPlan:
    """Keeps what has been pushed, and says what may be written now.

    Every cell goes out exactly once. In a ring a block waits until its slot has been credited; a leg that is held goes out
    only when all of it is there.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_slots: int, *, max_cells: int, held: bool = False) -> None:
        self._pushed = Coverage(num_layers, num_blocks)
        self._num_blocks = num_blocks
        self._num_slots = num_slots
        self._max_cells = max_cells
        self._held = held and num_slots >= num_blocks
        self._credited = [0] * num_layers
        self._waiting: deque[Piece] = deque()

    def push(self, piece: Piece) -> None:
        """Add cells whose KV is in place. Raises ValueError when one lies outside the leg or was pushed before."""
        self._pushed.add(piece)
        self._waiting.append(piece)
        if self._held and not self._pushed.num_missing:
            self._waiting = deque([self._pushed.whole])
            self._held = False

    def credit(self, layers: range, end_block: int) -> None:
        """Allow the slots of all blocks before `end_block` to be written again. An older credit changes nothing.

        Raises ValueError for layers or blocks outside the leg.
        """
        if not (0 <= layers.start < layers.stop <= len(self._credited) and 0 <= end_block <= self._num_blocks):
            raise ValueError(f"a credit for {layers} up to block {end_block} lies outside the leg")
        for layer in layers:
            self._credited[layer] = max(self._credited[layer], end_block)

    def take(self) -> Piece | None:
        """Return the next cells to write, in order of pushing, or None when nothing may be written now."""
        if self._held:
            return None
        for index, piece in enumerate(self._waiting):
            end = min(piece.blocks.stop, self._num_slots + min(self._credited[layer] for layer in piece.layers))
            if end > piece.blocks.start:
                return self._cut(index, end)
        return None

    def drop(self) -> None:
        """Write nothing more."""
        self._waiting.clear()

    @property
    def num_unpushed(self) -> int:
        return self._pushed.num_missing

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def _cut(self, index: int, end: int) -> Piece:
        piece = self._waiting[index]
        first = next(Piece(piece.layers, range(piece.blocks.start, end)).split(self._max_cells))
        if first.blocks.stop == piece.blocks.stop:
            del self._waiting[index]
        else:
            self._waiting[index] = Piece(piece.layers, range(first.blocks.stop, piece.blocks.stop))
        return first
