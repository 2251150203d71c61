"""Waiting for what other processes do in their own time."""

import asyncio
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.01


async def until(missing: Callable[[], Awaitable[str]], *, within_s: float) -> None:
    """Wait until `missing` has nothing to say. Fails with what it says last when that takes longer than `within_s`."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while what := await missing():
        assert loop.time() < give_up_at, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(LOOK_EVERY_S)
