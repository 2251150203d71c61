"""Closes a node's transport once the thread that uses it has ended, and leaves it open where that takes too long."""

import asyncio
import logging
from typing import Protocol

from twostep.kv_transfer.transport import Transport

log = logging.getLogger(__name__)
STOP_S = 10.0


class Stoppable(Protocol):
    def stop(self, timeout_s: float | None = None) -> bool:
        """End the work; returns whether its thread has ended in time."""


async def close_after(work: Stoppable, transport: Transport, *, timeout_s: float = STOP_S) -> None:
    """Stop `work`, then close `transport`.

    A thread that hangs in a post or a copy cannot be ended, and taking the transport's memory from under it would crash. It
    does not keep the process from exiting, which takes both.
    """
    if await asyncio.to_thread(work.stop, timeout_s):
        await asyncio.to_thread(transport.close)
    else:
        log.error("a thread has not ended: its transport stays open until the process exits", extra={"seconds": timeout_s})
