"""Nodes that Kubernetes knows, from the EndpointSlices of their Services: one list, then watches that go on from it.

While the API server cannot be had, what is known stays true.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

from twostep.core.clock import Clock
from twostep.kube.errors import ApiError
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.endpoint_slices import EndpointSlices, Slice
from twostep.router.discovery.member import Freshness, Member

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
SHORT_WATCH_S = 1.0
"""A watch that is closed sooner, and has told nothing, is not opened again at once."""


Events = AsyncIterator[tuple[str, Slice]]
"""Kinds of change (ADDED, MODIFIED, DELETED, BOOKMARK), each with the slice. Raises ApiError."""


class Api(Protocol):
    """What is asked of the API server. Both raise ApiError."""

    async def list_slices(self) -> tuple[Sequence[Slice], str]:
        """Return all slices, and the version of that answer."""

    def watch(self, version: str) -> AbstractAsyncContextManager[Events]:
        """Open a watch of what happens after `version`; it ends when the server closes it."""


OpenApi = Callable[[KubernetesDiscovery], AbstractAsyncContextManager[Api]]


class KubernetesWatch:
    """`open_api` is called when somebody wants to know."""

    source = "kubernetes"

    def __init__(
        self,
        config: KubernetesDiscovery,
        open_api: OpenApi,
        *,
        clock: Clock = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.freshness = Freshness(clock)
        self._config = config
        self._open_api = open_api
        self._clock = clock
        self._pause = pause
        self._slices = EndpointSlices(config)
        self._version = ""
        """Up to which the slices are known; empty when they have to be listed."""
        self._listed_at = clock()
        self._num_vain = 0
        """Attempts in a row that brought nothing."""

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        async with self._open_api(self._config) as api:
            while True:
                pause_s = 0.0
                try:
                    async with aclosing(self._list_and_watch(api)) as news:
                        async for members in news:
                            yield members
                except ApiError as error:
                    self._note(error)
                    pause_s = error.retry_after_s
                if self._num_vain:
                    await self._pause(max(pause_s, backoff_s(self._num_vain)))

    async def _list_and_watch(self, api: Api) -> AsyncGenerator[Sequence[Member], None]:
        """Yield the members after the list, if one is due, and after each event of one watch."""
        self._num_vain += 1
        if not self._version or self._clock() - self._listed_at > self._config.resync_s:
            slices, self._version = await api.list_slices()
            self._listed_at = self._clock()
            self._slices.replace(slices)
            self.freshness.confirm()
            yield self._slices.members()
        opened_at = self._clock()
        async with api.watch(self._version) as events:
            self.freshness.confirm()
            async for kind, one in events:
                self._num_vain = 0
                self._version = one["metadata"]["resourceVersion"]
                self.freshness.confirm()
                if kind != "BOOKMARK":
                    self._slices.apply(kind, one)
                    yield self._slices.members()
        if self._clock() - opened_at >= SHORT_WATCH_S:
            self._num_vain = 0
        self.freshness.confirm()

    def _note(self, error: ApiError) -> None:
        if error.is_expired:
            # Nothing is wrong: whoever was away for too long starts anew.
            self._version = ""
            return
        if str(error) != self.freshness.trouble:
            log.warning("the Kubernetes API cannot be read", extra={"reason": str(error)})
        self.freshness.doubt(str(error))


def backoff_s(num_vain: int) -> float:
    """Return how long to wait after so many vain attempts; never the same, lest all routers come back at once."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_vain - 1, 16))
    return longest * random.uniform(0.5, 1.0)
