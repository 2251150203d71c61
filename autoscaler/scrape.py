"""Fetches what programs tell at /metrics, from all of them at once, each within its time. Who does not answer is left out."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import httpx

from twostep.autoscaler.seen import Pod

log = logging.getLogger(__name__)

AT_ONCE = 64
T = TypeVar("T")


class Scraper:
    """Asks many at once, but not all."""

    def __init__(self, http: httpx.AsyncClient, *, scheme: str = "http") -> None:
        self._http = http
        self._scheme = scheme
        self._places = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, pods: Sequence[Pod], read: Callable[[str], T]) -> Mapping[str, T]:
        """Return what `read` makes of the page of each pod, by its uid.

        `read` raises ValueError, LookupError or TypeError for what is not such a page.
        """
        found = await asyncio.gather(*(self._fetch_one(pod, read) for pod in pods if pod.address))
        return {pod.uid: one for pod, one in zip((pod for pod in pods if pod.address), found, strict=True) if one is not None}

    async def _fetch_one(self, pod: Pod, read: Callable[[str], T]) -> T | None:
        try:
            async with self._places:
                reply = await self._http.get(f"{self._scheme}://{pod.address}/metrics")
                reply.raise_for_status()
            return read(reply.text)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            log.debug("no metrics", extra={"pod": pod.name, "reason": f"{type(error).__name__} {error}"})
            return None
