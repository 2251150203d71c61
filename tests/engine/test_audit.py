"""Every way in which a block pool's accounts can be wrong is named."""

from dataclasses import replace
from typing import Any

import pytest

from twostep.core.ids import BlockHash, BlockId, RequestId
from twostep.engine.audit import PoolTables, audit_pool


def blocks(*numbers: int) -> tuple[BlockId, ...]:
    return tuple(map(BlockId, numbers))


A, B = RequestId("a"), RequestId("b")
X, Y = BlockHash(b"x"), BlockHash(b"y")
SOUND = PoolTables(
    owners=((), (), (A,), (A, B), (B,)),
    held={A: blocks(2, 3), B: blocks(3, 4)},
    free=blocks(0),
    evictable=blocks(1),
    hashes={BlockId(1): X, BlockId(3): Y},
    by_hash={X: BlockId(1), Y: BlockId(3)},
)
SEQUENCES = {A: blocks(2, 3), B: blocks(3, 4)}


def test_sound_accounts_have_no_difference() -> None:
    assert audit_pool(SOUND, SEQUENCES) == ()


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        (
            {"free": ()},
            ["0 free + 1 cached + 3 referenced = 4 blocks, the pool has 5", "blocks 0 are not in exactly one place"],
        ),
        ({"free": blocks(0, 0)}, ["2 free + 1 cached + 3 referenced = 6 blocks", "blocks 0 are not in exactly one place"]),
        ({"free": blocks(0, 2)}, ["2 free + 1 cached + 3 referenced = 6 blocks", "blocks 2 are not in exactly one place"]),
        ({"free": blocks(9)}, ["blocks 0, 9 are not in exactly one place"]),
        ({"owners": ((), (), (A,), (A,), (B,))}, ["block 3 counts 1 references of b too few"]),
        ({"owners": ((), (), (A,), (A, A, B), (B,))}, ["block 3 counts 1 references of a too many"]),
        ({"by_hash": {X: BlockId(1)}}, ["1 prefixes can be found, 2 blocks carry a hash"]),
        ({"by_hash": {X: BlockId(3), Y: BlockId(1)}}, ["2 prefixes can be found, 2 blocks carry a hash"]),
        (
            {"hashes": {BlockId(3): Y}, "by_hash": {Y: BlockId(3)}},
            ["blocks 1 are cached and carry no hash"],
        ),
        (
            {"hashes": {BlockId(1): X, BlockId(7): Y}, "by_hash": {X: BlockId(1), Y: BlockId(7)}},
            ["blocks 7 carry a hash and do not exist"],
        ),
        (
            {"hashes": {BlockId(0): Y, BlockId(1): X}, "by_hash": {X: BlockId(1), Y: BlockId(0)}},
            ["blocks 0 are free and carry a hash"],
        ),
    ],
)
def test_a_difference_is_named(change: dict[str, Any], differences: list[str]) -> None:
    found = audit_pool(replace(SOUND, **change), SEQUENCES)
    assert len(found) == len(differences)
    for line, difference in zip(found, differences, strict=True):
        assert difference in line


def test_who_holds_blocks_without_being_alive_is_named() -> None:
    assert audit_pool(SOUND, {A: SEQUENCES[A]}) == ("b holds 2 blocks and is not alive",)


def test_who_uses_other_blocks_than_it_holds_is_named() -> None:
    assert audit_pool(SOUND, {**SEQUENCES, B: blocks(4, 3)}) == ("b uses 2 blocks and holds 2: they differ",)


def test_who_uses_blocks_without_holding_any_is_named() -> None:
    dead = RequestId("dead")
    assert audit_pool(SOUND, {**SEQUENCES, dead: blocks(0)}) == ("dead uses 1 blocks and holds 0: they differ",)
