"""Events wait in order, and not without bound."""

from twostep.core.ids import RequestId
from twostep.router.events import TokenArrived
from twostep.router.inbox import Inbox


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
