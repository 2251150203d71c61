"""What a prefix cache tells of its changes."""

from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash, RequestId
from twostep.engine.block_log import BlockLog
from twostep.engine.block_pool import BlockPool

A, B, C = BlockHash(b"a"), BlockHash(b"b"), BlockHash(b"c")


def test_events_are_told_from_where_somebody_has_heard_of_them() -> None:
    log = BlockLog(8)
    log.note_stored(A)
    log.note_stored(B)
    log.note_evicted(A)
    assert log.since(0) == BlockNews(0, 3, stored=(B,), evicted=(A,))
    assert log.since(2) == BlockNews(2, 3, evicted=(A,))
    assert log.since(3) == BlockNews(3, 3)


def test_of_a_block_that_went_and_came_back_only_the_last_word_counts() -> None:
    log = BlockLog(8)
    log.note_evicted(A)
    log.note_stored(A)
    assert log.since(0) == BlockNews(0, 2, stored=(A,))


def test_what_was_too_long_ago_or_has_never_been_is_not_told() -> None:
    log = BlockLog(2)
    for block in (A, B, C):
        log.note_stored(block)
    assert log.since(0) is None
    assert log.since(1) == BlockNews(1, 3, stored=(B, C))
    assert log.since(4) is None
    assert log.since(-1) is None


def test_a_pool_tells_what_it_publishes_evicts_and_purges() -> None:
    pool, owner = BlockPool(2), RequestId("a")
    first, second = pool.reserve(owner, [], 2).blocks  # type: ignore[union-attr]
    pool.publish(first, A)
    pool.publish(second, B)
    pool.purge([second])
    assert pool.news(0) == BlockNews(0, 3, stored=(A,), evicted=(B,))
    pool.release(owner)
    pool.reserve(RequestId("b"), [], 2)
    assert pool.news(3) == BlockNews(3, 4, evicted=(A,))


def test_a_pool_tells_everything_to_who_comes_too_late() -> None:
    pool, owner = BlockPool(1), RequestId("a")
    for name in (A, B, C):
        [block] = pool.reserve(owner, [], 1).blocks  # type: ignore[union-attr]
        pool.publish(block, name)
        pool.release(owner)
    assert pool.news(0) == BlockNews(0, 5, stored=(C,), is_snapshot=True)
    assert pool.news(3) == BlockNews(3, 5, stored=(C,), evicted=(B,))
