"""What may be written when: once each, in a ring only with credit, held until complete when the prompt is short."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.ids import BlockId
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.push_plan import PushPlan, UnitMap


def plan(num_blocks: int = 6, num_slots: int = 6, *, max_cells: int = 100, held: bool = False) -> PushPlan:
    return PushPlan(4, num_blocks, num_slots, max_cells=max_cells, held=held)


def taken(push_plan: PushPlan) -> list[Piece]:
    return list(iter(push_plan.take, None))


def test_pieces_go_out_as_they_were_pushed() -> None:
    pushed = [Piece(range(2), range(3)), Piece(range(2, 4), range(3)), Piece(range(4), range(3, 6))]
    push_plan = plan()
    for piece in pushed:
        push_plan.push(piece)
    assert taken(push_plan) == pushed
    assert push_plan.num_unpushed == 0


def test_a_large_piece_is_cut() -> None:
    push_plan = plan(max_cells=8)
    push_plan.push(Piece(range(4), range(5)))
    assert taken(push_plan) == [Piece(range(4), blocks) for blocks in (range(2), range(2, 4), range(4, 5))]


def test_a_ring_waits_for_the_credit_of_its_layers() -> None:
    push_plan = plan(num_slots=2)
    push_plan.push(Piece(range(2), range(5)))
    push_plan.push(Piece(range(2, 4), range(5)))
    assert taken(push_plan) == [Piece(range(2), range(2)), Piece(range(2, 4), range(2))]
    push_plan.credit(range(2, 4), 1)
    assert taken(push_plan) == [Piece(range(2, 4), range(2, 3))]
    push_plan.credit(range(2), 3)
    push_plan.credit(range(2), 2)
    assert taken(push_plan) == [Piece(range(2), range(2, 5))]
    assert push_plan.has_waiting


@pytest.mark.parametrize(
    ("layers", "end_block"), [(range(4, 5), 1), (range(3, 5), 1), (range(1, 1), 1), (range(4), 6), (range(4), -1)]
)
def test_a_credit_outside_the_leg_is_refused_and_credits_nothing(layers: range, end_block: int) -> None:
    push_plan = plan(num_blocks=5, num_slots=2)
    push_plan.push(Piece(range(4), range(5)))
    assert taken(push_plan) == [Piece(range(4), range(2))]
    with pytest.raises(ValueError, match="outside the leg"):
        push_plan.credit(layers, end_block)
    assert taken(push_plan) == []


def test_a_held_leg_goes_out_in_one_piece() -> None:
    push_plan = plan(held=True)
    push_plan.push(Piece(range(2), range(6)))
    push_plan.push(Piece(range(2, 4), range(3)))
    assert taken(push_plan) == []
    push_plan.push(Piece(range(2, 4), range(3, 6)))
    assert taken(push_plan) == [Piece(range(4), range(6))]


def test_a_ring_is_never_held() -> None:
    push_plan = plan(num_slots=5, held=True)
    push_plan.push(Piece(range(2), range(3)))
    assert taken(push_plan) == [Piece(range(2), range(3))]


def test_pushing_twice_is_refused_and_changes_nothing() -> None:
    push_plan = plan()
    push_plan.push(Piece(range(2), range(3)))
    with pytest.raises(ValueError, match="second time"):
        push_plan.push(Piece(range(1, 3), range(6)))
    assert taken(push_plan) == [Piece(range(2), range(3))]
    assert push_plan.num_unpushed == 18


def test_nothing_goes_out_after_a_drop() -> None:
    push_plan = plan()
    push_plan.push(Piece(range(2), range(3)))
    push_plan.drop()
    assert taken(push_plan) == []
    assert not push_plan.has_waiting


def test_units_are_counted_layer_by_layer() -> None:
    units = UnitMap(blocks=(BlockId(9), BlockId(4), BlockId(7)), num_pool_blocks=10, first_unit=100, num_slots=2)
    source, landing = units.units(Piece(range(1, 3), range(1, 3)))
    assert source.tolist() == [14, 17, 24, 27]
    assert landing.tolist() == [103, 102, 105, 104]
    assert (source.dtype, landing.dtype) == (np.int32, np.int32)


@given(st.integers(0, 2**32))
def test_every_cell_goes_out_once_and_no_slot_is_written_without_credit(seed: int) -> None:
    random = Random(seed)
    num_blocks, num_slots = random.randint(1, 9), random.randint(1, 9)
    push_plan = plan(num_blocks, num_slots, max_cells=random.randint(1, 20), held=random.random() < 0.5)
    ends = [*sorted(random.sample(range(1, num_blocks), random.randint(0, num_blocks - 1))), num_blocks]
    runs = [range(start, end) for start, end in pairwise([0, *ends])]
    to_push = [Piece(layers, blocks) for blocks in runs for layers in (range(3), range(3, 4))]
    written: set[tuple[int, int]] = set()
    credited = [0] * 4
    while to_push or push_plan.has_waiting:
        if to_push and random.random() < 0.5:
            push_plan.push(to_push.pop(0))
        layer = random.randint(0, 3)
        credited[layer] = next(block for block in range(num_blocks + 1) if (layer, block) not in written)
        push_plan.credit(range(layer, layer + 1), credited[layer])
        piece = push_plan.take()
        for cell in [(layer, block) for layer in piece.layers for block in piece.blocks] if piece else []:
            assert cell[1] < num_slots + credited[cell[0]]
            assert cell not in written
            written.add(cell)
    assert len(written) == 4 * num_blocks
