"""The accounts that are recomputed from the block table."""

import math

from twostep.core.ids import BlockHash, BlockId, RequestId
from twostep.engine.ledger import BlockTable, Census, Holder, LedgerEntry

A, B, DEAD = RequestId("a"), RequestId("b"), RequestId("dead")
TABLE = BlockTable(
    owners=((), (A,), (A, B), (), (DEAD,)),
    hashes={BlockId(2): BlockHash(b"x"), BlockId(3): BlockHash(b"y")},
)


def test_every_block_is_free_cached_or_referenced() -> None:
    assert TABLE.census([A, B, DEAD]) == Census(free=1, cached=1, referenced=3, orphaned=0, total=5)


def test_a_referenced_block_without_a_living_owner_is_orphaned() -> None:
    assert TABLE.census([A]).orphaned == 1
    assert TABLE.census([B]).orphaned == 2


def test_the_ledger_lists_each_owner_with_all_its_blocks() -> None:
    ledger = TABLE.ledger({A: Holder("running", 2.5), B: Holder("reserved", 0.5), DEAD: Holder("resting", 9.0)})
    assert ledger.entries == (
        LedgerEntry(A, "running", 2.5, (BlockId(1), BlockId(2))),
        LedgerEntry(B, "reserved", 0.5, (BlockId(2),)),
        LedgerEntry(DEAD, "resting", 9.0, (BlockId(4),)),
    )


def test_an_orphans_owner_is_listed_and_called_so() -> None:
    ledger = TABLE.ledger({A: Holder("running", 1.0), B: Holder("running", 1.0)})
    assert ledger.entries[-1] == LedgerEntry(DEAD, "orphaned", math.inf, (BlockId(4),))
    assert ledger.census.orphaned == 1


def test_a_living_request_without_blocks_is_listed_too() -> None:
    waiting = RequestId("waiting")
    holders = {A: Holder("running", 1.0), B: Holder("running", 1.0), waiting: Holder("preempted", 3.0)}
    assert LedgerEntry(waiting, "preempted", 3.0, ()) in TABLE.ledger(holders).entries
