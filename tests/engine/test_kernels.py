"""The reference kernels against their plain definitions."""

import math

import pytest
import torch
from torch import Tensor

from twostep.engine.kernels.reference import (
    Score,
    attend_chunk,
    attend_decodes,
    clear_blocks,
    gather_kv,
    rms_norm,
    rms_norm_from_one,
    rotate,
    store_kv,
)

BLOCKS, KV_HEADS, SIZE, DIM = 6, 2, 4, 8
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def head_blocks(*tables: list[int]) -> Tensor:
    return torch.tensor([block * KV_HEADS + head for table in tables for head in range(KV_HEADS) for block in table])


def plain_attention(query: Tensor, key: Tensor, value: Tensor, score: Score) -> Tensor:
    """Attention of one `query` [head, dim] over `key`, `value` [kv_head, token, dim], head by head."""
    group = query.shape[0] // key.shape[0]
    heads = []
    for head, one in enumerate(query):
        scores = key[head // group] @ one * (score.scale or 1 / math.sqrt(DIM))
        if score.cap:
            scores = score.cap * torch.tanh(scores / score.cap)
        heads.append(scores.softmax(-1) @ value[head // group])
    return torch.stack(heads)


def test_what_is_stored_is_gathered_through_any_table() -> None:
    pool, key, value = torch.zeros(BLOCKS, KV_HEADS, SIZE, 2, DIM), random(6, KV_HEADS, DIM), random(6, KV_HEADS, DIM)
    table = [4, 1]
    places = [divmod(position, SIZE) for position in range(6)]
    slots = [(table[column] * KV_HEADS + head) * SIZE + at for column, at in places for head in range(KV_HEADS)]
    store_kv(pool, key, value, torch.tensor(slots))
    gathered = gather_kv(pool, head_blocks(table), batch=1)
    for stored, found in zip((key, value), gathered, strict=True):
        assert torch.equal(found[0, :, :6].transpose(0, 1), stored)
        assert not found[0, :, 6:].any()
    assert not pool[[0, 2, 3, 5]].any()


def test_clearing_touches_the_named_blocks_alone() -> None:
    pool = torch.ones(BLOCKS, KV_HEADS, SIZE, 2, DIM)
    clear_blocks(pool, torch.tensor([4, 2]))
    assert pool.flatten(1).all(1).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("num_heads", [2, 4, 6, 10])
@pytest.mark.parametrize("score", [Score(), Score(scale=0.3), Score(cap=2.0)])
def test_attention_is_its_definition_however_many_heads_share_keys(num_heads: int, score: Score) -> None:
    pool = random(BLOCKS, KV_HEADS, SIZE, 2, DIM)
    tables = ([3, 0], [5, 2])
    query, ends = random(2, num_heads, DIM), [7, 3]
    mask = torch.arange(2 * SIZE) < torch.tensor(ends)[:, None, None, None]
    found = attend_decodes(query, pool, head_blocks(*tables), mask, score)
    for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
        key, value = (part[0, :, :end] for part in gather_kv(pool, head_blocks(table), batch=1))
        torch.testing.assert_close(found[row], plain_attention(query[row], key, value, score))


@pytest.mark.parametrize("score", [Score(), Score(cap=2.0)])
def test_a_chunk_attends_row_by_row(score: Score) -> None:
    pool, query = random(BLOCKS, KV_HEADS, SIZE, 2, DIM), random(3, 4, DIM)
    key, value = gather_kv(pool, head_blocks([1, 4]), batch=1)
    mask = torch.arange(2 * SIZE) <= torch.arange(4, 8)[:, None]
    found = attend_chunk(query, pool, head_blocks([1, 4]), mask, score)
    for row in range(3):
        expected = plain_attention(query[row], key[0, :, : 5 + row], value[0, :, : 5 + row], score)
        torch.testing.assert_close(found[row], expected)


def test_rotation_turns_pairs_of_halves_and_keeps_lengths() -> None:
    x, angle = random(1, 1, DIM), 0.7
    angles = torch.full((1, 1, DIM), angle)
    turned = rotate(x, angles.cos(), angles.sin())
    as_complex = torch.complex(x[..., : DIM // 2], x[..., DIM // 2 :]) * complex(math.cos(angle), math.sin(angle))
    torch.testing.assert_close(turned, torch.cat((as_complex.real, as_complex.imag), dim=-1))


def test_rotation_in_part_keeps_the_rest_of_each_head() -> None:
    x, angles = random(2, 3, DIM), random(2, 1, 6)
    turned = rotate(x, angles.cos(), angles.sin())
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert torch.equal(turned[..., :6], rotate(x[..., :6], angles.cos(), angles.sin()))


def test_a_norm_from_one_scales_by_what_the_weight_has_beyond_one() -> None:
    x, weight = random(3, DIM), random(DIM)
    torch.testing.assert_close(rms_norm_from_one(x, weight, 1e-6), rms_norm(x, 1 + weight, 1e-6))
