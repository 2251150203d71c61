"""A step's tensors: where each row's KV goes, which blocks are cleared, and who sees what."""

import torch

from twostep.core.ids import BlockId, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.core.request import SamplingParams
from twostep.engine.batch import Batch, Chunk, Draw
from twostep.engine.forward_batch import ForwardBatch, ForwardBatchBuilder

HEADS, SIZE = 2, 32
DRAW = Draw(SamplingParams(0, temperature=0.0), 0)


def forward(*chunks: Chunk, dtype: torch.dtype = torch.bfloat16, windows: tuple[int | None, ...] = (None,)) -> ForwardBatch:
    layout = KVLayout(3, HEADS, 8, SIZE, "bfloat16")
    return ForwardBatchBuilder(layout, windows, dtype, torch.device("cpu")).build(Batch(chunks))


def chunk(start: int, end: int, *blocks: int, draw: Draw | None = DRAW) -> Chunk:
    return Chunk(RequestId("r"), tuple(range(100 + start, 100 + end)), start, tuple(BlockId(b) for b in blocks), draw)


def slot(block: int, offset: int) -> list[int]:
    return [(block * HEADS + head) * SIZE + offset for head in range(HEADS)]


def test_rows_are_chunk_after_chunk_and_padded_to_whole_rows() -> None:
    step = forward(chunk(40, 41, 7, 5), chunk(0, 2, 9, draw=None), chunk(62, 65, 1, 2, 3))
    assert (step.num_tokens, step.num_draws) == (6, 2)
    assert step.tokens.tolist() == [140, 100, 101, 162, 163, 164, *[0] * 10]
    assert step.positions.tolist() == [40, 0, 1, 62, 63, 64, *[0] * 10]
    assert step.draw_rows.tolist() == [0, 5, *[0] * 14]


def test_each_token_has_a_slot_in_every_head_of_its_block() -> None:
    step = forward(chunk(40, 41, 7, 5), chunk(62, 65, 1, 2, 3))
    assert step.slots.tolist() == slot(5, 8) + slot(2, 30) + slot(2, 31) + slot(3, 0)


def test_the_blocks_that_a_step_begins_and_does_not_fill_are_fresh() -> None:
    begun, filled, continued = chunk(30, 35, 1, 2), chunk(0, 64, 3, 4), chunk(40, 45, 5, 6)
    assert forward(begun, filled, continued).fresh_blocks.tolist() == [2]


def test_decodes_of_the_same_padded_length_are_one_group() -> None:
    step = forward(chunk(3, 4, 1), chunk(130, 131, 2, 3, 4, 5, 6), chunk(127, 128, 7, 8, 9, 10))
    assert [group.rows.tolist() for group in step.decodes] == [[0, 2], [1]]
    near, far = step.decodes
    padded_table = [1 * HEADS, 1 * HEADS, 1 * HEADS, 1 * HEADS]
    assert near.head_blocks[:8].tolist() == [*padded_table, *(number + 1 for number in padded_table)]
    assert near.masks[None].shape == (2, 1, 1, 128)
    assert near.masks[None].sum(-1).flatten().tolist() == [4, 128]
    assert far.masks[None].shape == (1, 1, 1, 256)


def test_float32_decodes_see_whole_tiles_of_keys() -> None:
    (group,) = forward(chunk(3, 4, 1), dtype=torch.float32).decodes
    assert group.masks[None].shape == (1, 1, 1, 512)


def test_a_chunk_sees_what_is_before_it_and_itself_up_to_the_diagonal() -> None:
    (group,) = forward(chunk(30, 35, 1, 2)).chunks
    assert group.rows == slice(0, 5)
    assert group.masks[None].shape == (16, 512)
    assert group.masks[None].sum(1).tolist() == list(range(31, 47))


def test_a_window_hides_what_lies_farther_back() -> None:
    step = forward(chunk(30, 35, 1, 2), chunk(50, 51, 3, 4), windows=(None, 4))
    assert step.chunks[0].masks[4][:5].nonzero()[:, 1].view(5, 4).tolist() == [
        list(range(at - 3, at + 1)) for at in range(30, 35)
    ]
    assert step.decodes[0].masks[4].flatten().nonzero().flatten().tolist() == [47, 48, 49, 50]
