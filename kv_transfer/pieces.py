"""What moves at once, a rectangle of layers and blocks, and which cells of a leg have been seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Piece:
    """The cells `layers` x `blocks` of one leg; blocks are P's, counted within the missing range."""

    layers: range
    blocks: range

    def __len__(self) -> int:
        return len(self.layers) * len(self.blocks)

    def split(self, max_cells: int) -> Iterator["Piece"]:
        """Yield parts of at most `max_cells` cells (but at least one block), in order of blocks."""
        step = max(1, max_cells // len(self.layers))
        for start in range(self.blocks.start, self.blocks.stop, step):
            yield Piece(self.layers, range(start, min(start + step, self.blocks.stop)))


class Coverage:
    """The set of cells (layer, block) that something has happened to."""

    def __init__(self, num_layers: int, num_blocks: int) -> None:
        self._seen = np.zeros((num_layers, num_blocks), np.bool_)

    def require_inside(self, piece: Piece) -> None:
        """Raise ValueError unless the piece is a non-empty rectangle of this leg."""
        num_layers, num_blocks = self._seen.shape
        for run, end, what in ((piece.layers, num_layers, "layers"), (piece.blocks, num_blocks, "blocks")):
            if run.step != 1 or not 0 <= run.start < run.stop <= end:
                raise ValueError(f"{what} {run} are not a run inside [0, {end})")

    def add(self, piece: Piece) -> None:
        """Add all cells of the piece. Raises ValueError when one lies outside or is there already."""
        self.require_inside(piece)
        cells = self._cells(piece)
        if cells.any():
            raise ValueError(f"{np.count_nonzero(cells)} cells of {piece} come a second time")
        cells[:] = True

    def fill(self, piece: Piece) -> None:
        """Add the cells of the piece, new or not."""
        self._cells(piece)[:] = True

    def remove(self, piece: Piece) -> None:
        self._cells(piece)[:] = False

    def covers(self, piece: Piece) -> bool:
        return bool(self._cells(piece).all())

    def missing(self, piece: Piece) -> list[Piece]:
        """Return the cells of the piece that are not in the set, as few rectangles."""
        return rectangles(~self._cells(piece), piece.layers.start, piece.blocks.start)

    @property
    def whole(self) -> Piece:
        num_layers, num_blocks = self._seen.shape
        return Piece(range(num_layers), range(num_blocks))

    @property
    def num_missing(self) -> int:
        return int(self._seen.size - np.count_nonzero(self._seen))

    def end_block(self, layers: range) -> int:
        """Return the largest end such that all blocks before it are in the set, for each of `layers`."""
        blanks = np.flatnonzero(~self._seen[layers.start : layers.stop].all(axis=0))
        return int(blanks[0]) if len(blanks) else self._seen.shape[1]

    def _cells(self, piece: Piece) -> NDArray[np.bool_]:
        return self._seen[piece.layers.start : piece.layers.stop, piece.blocks.start : piece.blocks.stop]


def rectangles(cells: NDArray[np.bool_], first_layer: int = 0, first_block: int = 0) -> list[Piece]:
    """Return rectangles that together hold exactly the true cells of [layer, block]; equal neighbouring layers join."""
    if not cells.any():
        return []
    changes = np.flatnonzero((cells[1:] != cells[:-1]).any(axis=1)) + 1
    edges = [0, *map(int, changes), len(cells)]
    return [
        Piece(range(first_layer + start, first_layer + end), run)
        for start, end in pairwise(edges)
        for run in _runs(cells[start], first_block)
    ]


def _runs(row: NDArray[np.bool_], first: int) -> list[range]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False])))) + first
    return [range(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
