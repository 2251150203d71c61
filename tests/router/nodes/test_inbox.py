"""Events wait in order, and not without bound."""

import asyncio
from collections.abc import Sequence

import pytest

from twostep.core.ids import RequestId
from twostep.router.nodes.events import Event, TokenArrived
from twostep.router.nodes.inbox import Inbox


def token(index: int) -> TokenArrived:
    return TokenArrived(RequestId("req-1"), 1, index, 7)


async def test_all_waiting_events_are_taken_in_order() -> None:
    inbox = Inbox(10)
    inbox.put(token(0))
    inbox.put(token(1))
    assert await inbox.take() == [token(0), token(1)]
    inbox.put(token(2))
    assert await inbox.take() == [token(2)]


async def test_the_reader_is_behind_with_more_than_half_of_the_bound_waiting_until_it_takes_them() -> None:
    inbox = Inbox(4)
    turns: list[bool] = []
    inbox.on_turn(lambda: turns.append(inbox.is_behind))
    for index in range(4):
        assert inbox.is_behind is (index > 2)
        inbox.put(token(index))
    await inbox.take()
    assert turns == [True, False]


async def test_the_first_event_over_the_bound_is_said_once() -> None:
    told: list[bool] = []
    inbox = Inbox(2)
    inbox.on_overflow(lambda: told.append(True))
    for index in range(4):
        inbox.put(token(index))
    assert told == [True]
    assert inbox.has_overflowed
    assert await inbox.take() == [token(0), token(1)]


async def test_a_waiting_reader_is_offered_the_events_of_a_message_and_woken_for_the_rest_only() -> None:
    inbox, taken = Inbox(10), list[Event]()

    def first(events: Sequence[Event]) -> Sequence[Event]:
        taken.append(events[0])
        return events[1:]

    reader = asyncio.create_task(inbox.take(first))
    await asyncio.sleep(0)
    inbox.put_all([token(0)])
    await asyncio.sleep(0)
    assert (taken, reader.done()) == ([token(0)], False)
    inbox.put_all([token(1), token(2)])
    inbox.put_all([token(3)])
    assert await reader == [token(2), token(3)]
    assert taken == [token(0), token(1)]


async def test_more_events_than_may_wait_are_too_many_for_a_waiting_reader_too() -> None:
    inbox = Inbox(2)
    reader = asyncio.create_task(inbox.take(lambda events: pytest.fail(f"offered {events}")))
    await asyncio.sleep(0)
    inbox.put_all([token(0), token(1), token(2)])
    assert inbox.has_overflowed
    assert await reader == [token(0), token(1)]


async def test_a_reader_that_does_not_wait_is_offered_nothing() -> None:
    inbox = Inbox(10)
    inbox.put_all([token(0), token(1)])
    assert await inbox.take(lambda events: pytest.fail(f"offered {events}")) == [token(0), token(1)]


async def test_a_reader_can_be_woken_without_an_event() -> None:
    inbox = Inbox(10)
    reader = asyncio.create_task(inbox.take(lambda events: events))
    await asyncio.sleep(0)
    inbox.wake()
    assert await reader == []
