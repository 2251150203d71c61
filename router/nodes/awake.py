"""The clock by which the router judges its nodes: it leaves out what passed while the router itself was stopped."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twostep.core.awake_clock import AwakeClock
from twostep.core.clock import Clock

log = logging.getLogger(__name__)

TICK_S = 0.25
MAX_GAP_S = 1.0


@asynccontextmanager
async def awake_clock(clock: Clock = time.monotonic) -> AsyncIterator[Clock]:
    """Provide a clock that is ticked on this event loop."""
    awake = AwakeClock(clock, MAX_GAP_S)

    async def keep_ticking() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if asleep_s := awake.tick():
                log.warning("the router was stopped or starved", extra={"seconds": round(asleep_s, 3)})

    ticking = asyncio.create_task(keep_ticking())
    try:
        yield awake
    finally:
        ticking.cancel()
