"""Coverage and rectangles: which cells have been seen, and how few pieces the others make."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from twostep.kv_transfer.pieces import Coverage, Piece, rectangles


def test_a_cell_cannot_come_twice() -> None:
    coverage = Coverage(4, 6)
    coverage.add(Piece(range(2), range(3)))
    with pytest.raises(ValueError, match="come a second time"):
        coverage.add(Piece(range(1, 3), range(2, 4)))
    assert coverage.num_missing == 18


@pytest.mark.parametrize(
    "piece",
    [
        Piece(range(5), range(1)),
        Piece(range(1), range(7)),
        Piece(range(-1, 1), range(1)),
        Piece(range(0), range(1)),
        Piece(range(1), range(3, 3)),
        Piece(range(0, 4, 2), range(1)),
    ],
)
def test_a_piece_that_is_no_rectangle_of_the_leg_is_refused(piece: Piece) -> None:
    with pytest.raises(ValueError, match="not a run inside"):
        Coverage(4, 6).add(piece)


def test_equal_neighbouring_layers_join_into_one_rectangle() -> None:
    coverage = Coverage(4, 6)
    coverage.add(Piece(range(2), range(3)))
    assert coverage.missing(coverage.whole) == [Piece(range(2), range(3, 6)), Piece(range(2, 4), range(6))]


def test_the_end_block_is_where_the_first_gap_begins() -> None:
    coverage = Coverage(2, 4)
    coverage.add(Piece(range(2), range(2)))
    coverage.add(Piece(range(1), range(2, 4)))
    assert [coverage.end_block(layers) for layers in (range(1), range(1, 2), range(2))] == [4, 2, 2]


def test_a_piece_is_cut_at_whole_blocks() -> None:
    piece = Piece(range(2, 5), range(1, 6))
    assert list(piece.split(6)) == [Piece(range(2, 5), blocks) for blocks in (range(1, 3), range(3, 5), range(5, 6))]
    assert list(piece.split(1)) == [Piece(range(2, 5), range(block, block + 1)) for block in range(1, 6)]
    assert list(piece.split(100)) == [piece]


@given(arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=8)), st.integers(0, 5), st.integers(0, 5))
def test_rectangles_hold_each_true_cell_once(cells: np.ndarray, first_layer: int, first_block: int) -> None:
    found = [
        (layer - first_layer, block - first_block)
        for piece in rectangles(cells, first_layer, first_block)
        for layer in piece.layers
        for block in piece.blocks
    ]
    assert sorted(found) == [tuple(cell) for cell in np.argwhere(cells).tolist()]
