"""Tokens are put out together, those behind the last one wanted go nowhere, and a slow client is waited for."""

import asyncio
from collections.abc import Sequence

from twostep.router.requests.delivery import Delivery


class Client:
    """A TokenSink that wants so many tokens, and takes them at once unless it `is_slow`."""

    def __init__(self, wanted: int = 100, *, is_slow: bool = False) -> None:
        self.put_out: list[list[int]] = []
        self.is_satisfied = False
        self._wanted = wanted
        self.is_slow = is_slow
        self.may_settle = asyncio.Event()

    def put(self, tokens: Sequence[int]) -> bool:
        self.put_out.append(list(tokens))
        self.is_satisfied = sum(map(len, self.put_out)) >= self._wanted
        return not self.is_slow

    async def settle(self) -> None:
        await self.may_settle.wait()


async def test_tokens_accepted_together_are_put_together() -> None:
    client = Client()
    tokens = [1, 2]
    delivery = Delivery(tokens, client, iter([5.0, 6.0]).__next__)
    assert delivery.put_out()
    tokens.append(3)
    await delivery.settle()
    assert delivery.put_out()
    assert (client.put_out, delivery.first_out) == ([[1, 2], [3]], 5.0)


async def test_what_comes_after_the_last_token_wanted_goes_nowhere() -> None:
    client = Client(wanted=1)
    tokens = [1]
    delivery = Delivery(tokens, client, lambda: 0.0)
    delivery.put_out()
    tokens.append(2)
    await delivery.settle()
    assert client.put_out == [[1]]


async def test_what_waits_is_not_out_because_what_came_after_it_has_nothing_to_say() -> None:
    client = Client(is_slow=True)
    tokens = [1]
    delivery = Delivery(tokens, client, lambda: 5.0)
    assert not delivery.put_out()
    client.is_slow = False
    tokens.append(2)
    assert not delivery.put_out()
    assert delivery.first_out is None
    client.may_settle.set()
    await delivery.settle()
    assert delivery.put_out()


async def test_a_client_that_takes_nothing_is_waited_for() -> None:
    client = Client(is_slow=True)
    delivery = Delivery([1], client, lambda: 5.0)
    assert not delivery.put_out()
    waiting = asyncio.create_task(delivery.settle())
    await asyncio.sleep(0)
    assert (waiting.done(), delivery.first_out) == (False, None)
    client.may_settle.set()
    await waiting
    assert delivery.first_out == 5.0
    assert delivery.put_out()
