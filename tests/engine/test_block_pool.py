"""Exact block ids: what is hit, what is shared, what is evicted next."""

import pytest

from twostep.core.ids import BlockHash, RequestId
from twostep.engine.block_pool import BlockPool, Holding

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def hashes(text: str) -> list[BlockHash]:
    """Return a chain: "xyz" and "xyw" share their first two blocks."""
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


def compute(pool: BlockPool, owner: RequestId, text: str) -> tuple[int, ...]:
    """Let `owner` hold, compute and publish the blocks of `text`."""
    holding = pool.reserve(owner, hashes(text), len(text))
    assert holding is not None
    for block, known_as, before in zip(holding.blocks, hashes(text), [None, *hashes(text[:-1])], strict=True):
        pool.publish(block, known_as, before)
    return holding.blocks


def counts(pool: BlockPool, *alive: RequestId) -> tuple[int, int, int, int]:
    census = pool.table().census(alive)
    assert census.free + census.cached + census.referenced == census.total
    return census.free, census.cached, census.referenced, census.orphaned


def test_a_fresh_pool_gives_the_lowest_ids_in_order() -> None:
    pool = BlockPool(8)
    assert pool.reserve(A, [], 3) == Holding((0, 1, 2), 0)
    assert pool.reserve(B, [], 2) == Holding((3, 4), 0)
    assert counts(pool, A, B) == (3, 0, 5, 0)


def test_unpublished_blocks_are_free_again_and_come_in_ascending_order() -> None:
    pool = BlockPool(4)
    pool.reserve(A, [], 2)
    pool.reserve(B, [], 1)
    pool.release(A)
    assert pool.reserve(C, [], 3) == Holding((0, 1, 3), 0)


def evicted(pool: BlockPool, times: int) -> list[int]:
    """Take one block after another, and return them in the order in which they were given."""
    return [pool.grow(A, 1)[0] for _ in range(times)]


def test_a_published_prefix_is_shared_while_its_first_owner_lives() -> None:
    pool = BlockPool(8)
    assert compute(pool, A, "xyz") == (0, 1, 2)
    assert pool.reserve(B, hashes("xyw"), 4) == Holding((0, 1, 3, 4), 2)
    assert pool.table().owners[:5] == ((A, B), (A, B), (A,), (B,), (B,))
    assert counts(pool, A, B) == (3, 0, 5, 0)


def test_a_shared_block_is_freed_with_its_last_owner() -> None:
    pool = BlockPool(8)
    compute(pool, A, "xy")
    pool.reserve(B, hashes("xy"), 2)
    pool.release(A)
    assert counts(pool, B) == (6, 0, 2, 0)
    pool.release(B)
    assert counts(pool) == (6, 2, 0, 0)


def test_a_freed_block_can_be_hit_until_it_is_reused() -> None:
    pool = BlockPool(4)
    compute(pool, A, "xy")
    pool.release(A)
    assert pool.reserve(B, hashes("xy"), 3) == Holding((0, 1, 2), 2)
    pool.release(B)
    assert pool.reserve(C, [], 4) == Holding((0, 1, 2, 3), 0)
    pool.release(C)
    assert pool.reserve(A, hashes("xy"), 2) == Holding((0, 1), 0)
    assert counts(pool, A) == (2, 0, 2, 0)


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(6)
    compute(pool, A, "ab")
    compute(pool, B, "cd")
    compute(pool, C, "ef")
    for owner in (B, A, C):
        pool.release(owner)
    pool.reserve(B, hashes("cd"), 2)
    pool.release(B)
    pool.reserve(A, [], 0)
    assert evicted(pool, 6) == [1, 0, 5, 4, 3, 2]


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    compute(pool, A, "xyz")
    pool.release(A)
    pool.reserve(B, [], 1)
    assert pool.reserve(C, hashes("xyz"), 2) == Holding((0, 1), 2)


def test_blocks_without_a_hash_are_reused_before_findable_ones() -> None:
    pool = BlockPool(3)
    compute(pool, A, "x")
    pool.reserve(B, [], 2)
    pool.release(A)
    pool.release(B)
    pool.reserve(A, [], 0)
    assert evicted(pool, 3) == [1, 2, 0]


def test_of_equal_blocks_only_the_first_is_findable() -> None:
    pool = BlockPool(4)
    first, second = pool.reserve(A, hashes("x"), 1), pool.reserve(B, hashes("x"), 1)
    assert (first, second) == (Holding((0,), 0), Holding((1,), 0))
    for block in (0, 1):
        pool.publish(block, hashes("x")[0])  # type: ignore[arg-type]
    pool.release(B)
    assert counts(pool, A) == (3, 0, 1, 0)
    assert pool.reserve(C, hashes("x"), 1) == Holding((0,), 1)


def test_lookup_takes_nothing_when_the_rest_does_not_fit() -> None:
    pool = BlockPool(4)
    compute(pool, A, "xy")
    pool.release(A)
    before = pool.table()
    assert pool.reserve(B, hashes("xy"), 5) is None
    assert pool.table() == before
    assert pool.reserve(B, hashes("xy"), 4) == Holding((0, 1, 2, 3), 2)


def test_hits_that_nobody_references_count_against_what_is_available() -> None:
    pool = BlockPool(4)
    compute(pool, A, "xy")
    pool.release(A)
    pool.reserve(B, [], 2)
    assert pool.num_available == 2
    assert pool.reserve(C, hashes("xy"), 3) is None
    assert pool.reserve(C, hashes("xy"), 2) == Holding((0, 1), 2)


def test_spare_blocks_stay_available() -> None:
    pool = BlockPool(4)
    assert pool.reserve(A, [], 3, spare=2) is None
    assert pool.reserve(A, [], 2, spare=2) == Holding((0, 1), 0)


def test_a_hit_is_cut_to_whole_steps() -> None:
    pool = BlockPool(8)
    compute(pool, A, "abc")
    assert pool.reserve(B, hashes("abc"), 4, hit_step=2) == Holding((0, 1, 3, 4), 2)


def test_a_purged_block_is_not_found_and_neither_is_what_follows_it() -> None:
    pool = BlockPool(8)
    blocks = compute(pool, A, "xyz")
    pool.purge(blocks[1:2])
    assert pool.reserve(B, hashes("xyz"), 3) == Holding((0, 3, 4), 1)
    pool.release(A)
    pool.release(B)
    assert counts(pool) == (7, 1, 0, 0)


def test_what_was_computed_from_a_purged_block_is_not_found_when_that_has_been_computed_anew() -> None:
    pool = BlockPool(8)
    blocks = compute(pool, A, "xyz")
    pool.release(A)
    pool.purge(blocks[:1])
    compute(pool, B, "x")
    pool.release(B)
    assert pool.num_hits(hashes("xyz")) == 1


def test_who_holds_a_purged_block_publishes_nothing_any_more() -> None:
    pool = BlockPool(8)
    compute(pool, A, "x")
    holding = pool.reserve(B, hashes("xy"), 2)
    assert holding is not None
    pool.purge(holding.blocks[:1])
    pool.publish(holding.blocks[1], hashes("xy")[1], hashes("xy")[0])
    assert pool.num_hits(hashes("xy")[1:]) == 0
    pool.release(B)
    compute(pool, B, "y")
    assert pool.num_hits(hashes("y")) == 1


def test_a_purged_block_that_nobody_references_is_free() -> None:
    pool = BlockPool(2)
    blocks = compute(pool, A, "x")
    pool.release(A)
    pool.purge(blocks)
    assert counts(pool) == (2, 0, 0, 0)
    assert pool.reserve(B, [], 2) == Holding((0, 1), 0)


def test_growing_beyond_what_is_available_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.reserve(A, [], 1)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 are available"):
        pool.grow(A, 3)
    assert pool.grow(A, 2) == [1, 2]
    assert counts(pool, A) == (0, 0, 3, 0)


def test_an_owner_cannot_reserve_twice() -> None:
    pool = BlockPool(3)
    pool.reserve(A, [], 1)
    with pytest.raises(ValueError, match="a holds blocks already"):
        pool.reserve(A, [], 1)


def test_a_block_whose_owners_are_all_dead_is_an_orphan() -> None:
    pool = BlockPool(4)
    compute(pool, A, "xy")
    pool.reserve(B, hashes("x"), 2)
    assert counts(pool, A, B) == (1, 0, 3, 0)
    assert counts(pool, A) == (1, 0, 3, 1)
    assert counts(pool) == (1, 0, 3, 3)
