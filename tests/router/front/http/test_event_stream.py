"""Events go the short way where there is one, and never overtake what waits for the client."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from twostep.router.front.http.event_stream import EventStream


class Connection:
    """Both ways to one client: ASGI's, which waits while it `is_slow`, and the short one."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.short: list[bytes] = []
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])

    def write(self, piece: bytes) -> bool:
        if self.may_send.is_set():
            self.short.append(piece)
        return self.may_send.is_set()


async def test_the_first_events_go_with_the_head_and_the_others_the_short_way() -> None:
    connection = Connection()
    stream = EventStream(connection.send, connection)
    assert not stream.put(b"1")
    assert not stream.put(b"2")
    await stream.settle()
    assert stream.put(b"3")
    await stream.end(b"4")
    assert (connection.sent, connection.short) == ([b"12", b"4"], [b"3"])


async def test_nothing_overtakes_what_waits_for_a_slow_client() -> None:
    connection = Connection()
    stream = EventStream(connection.send, connection)
    stream.put(b"1")
    await stream.settle()
    connection.may_send.clear()
    stream.put(b"2")
    waiting = asyncio.create_task(stream.settle())
    await asyncio.sleep(0)
    # The client takes more again, but the task that sends to it has not had its turn yet.
    connection.may_send.set()
    stream.put(b"3")
    await waiting
    await stream.settle()
    assert (connection.sent, connection.short) == ([b"1", b"2", b"3"], [])


async def test_without_a_short_way_all_that_is_put_together_goes_in_one_piece() -> None:
    connection = Connection()
    stream = EventStream(connection.send)
    stream.put(b"1")
    await stream.settle()
    stream.put(b"2")
    stream.put(b"3")
    await stream.settle()
    await stream.settle()
    assert connection.sent == [b"1", b"23"]
