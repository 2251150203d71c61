"""Calls to other nodes: channels kept by address, and calls that are repeated until they are answered."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio

from twostep.core.errors import DeadlineExceeded, NodeUnavailable
from twostep.proto.rpc import open_channel

T = TypeVar("T")
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Channels:
    """One channel per address, opened on first use."""

    def __init__(self, open_one: Callable[[str], grpc.aio.Channel] = open_channel) -> None:
        self._open_one = open_one
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._open_one(address)
        return self._channels[address]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


async def repeat_until_answered(call: Callable[[], Awaitable[T]], *, give_up_s: float) -> T:
    """Call again, with growing pauses, while nobody answers; any answer, an error too, is the end of it.

    Raises the last NodeUnavailable or DeadlineExceeded when `give_up_s` have passed, and whatever the other side answers.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + give_up_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except (NodeUnavailable, DeadlineExceeded):
            if loop.time() + pause_s > give_up_at:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
