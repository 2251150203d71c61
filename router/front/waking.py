"""Holds requests that no node can serve while nodes may be on their way, and tells how many: that is what wakes the pools."""

import asyncio
from contextlib import suppress

from twostep.router.front.readiness import Readiness
from twostep.router.metrics import Metrics
from twostep.router.nodes.pool import NodePool


class Waking:
    """`wait_s` is how long a request waits at most; 0: not at all."""

    def __init__(self, pool: NodePool, readiness: Readiness, metrics: Metrics, *, wait_s: float) -> None:
        self._pool = pool
        self._readiness = readiness
        self._metrics = metrics
        self._wait_s = wait_s

    async def until_served(self) -> None:
        """Return when a request can be served, or has waited for long enough: then it is refused like any other."""
        if not self._wait_s or self._readiness.can_serve:
            return
        with self._metrics.waiting.track_inprogress(), suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while not self._readiness.can_serve:
                    await self._pool.change()
