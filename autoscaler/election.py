"""Decides which of several autoscalers acts, by a Lease: the one that holds it and has renewed it in time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from twostep.autoscaler.kubernetes_api import Api, Lease
from twostep.core.clock import Clock
from twostep.kube.errors import ApiError

log = logging.getLogger(__name__)

RENEWALS = 3
"""Within the time of one lease."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A Lease as it was read last, and since when it has not changed by our own clock."""

    lease: Lease
    since_s: float


def candidate(watched: Watched | None, me: str, now_s: float, lease_s: float) -> Lease | None:
    """Return the Lease to write: ours to renew, or one that nobody holds, or whose holder is silent. None: leave it."""
    if watched is None:
        return Lease(me, "", "")
    lease = watched.lease
    if lease.holder == me:
        return lease
    if not lease.holder or now_s - watched.since_s > lease_s:
        return replace(lease, holder=me, transitions=lease.transitions + 1)
    return None


class Election:
    """`look` once every third of a lease. Whoever cannot renew it stops acting before another one may begin."""

    def __init__(self, api: Api, me: str, lease_s: int, clock: Clock, wall: Callable[[], datetime]) -> None:
        self.trouble = ""
        """Why the Lease could not be read or written; empty when it could."""
        self._api = api
        self._me = me
        self._lease_s = lease_s
        self._clock = clock
        self._wall = wall
        self._watched: Watched | None = None
        self._renewed_at: float | None = None

    @property
    def is_leader(self) -> bool:
        # A third of the lease is left for what is under way, and for clocks that run differently.
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._lease_s * (1 - 1 / RENEWALS)

    @property
    def leader(self) -> str:
        """Return who acts, as far as is known."""
        return self._watched.lease.holder if self._watched else ""

    async def look(self) -> None:
        """Renew the Lease, take it over, or leave it."""
        led = self.is_leader
        try:
            await self._look()
            self.trouble = ""
        except ApiError as error:
            if not error.is_conflict:
                self._doubt(error)
        if led != self.is_leader:
            log.info("this autoscaler acts" if self.is_leader else "another autoscaler acts", extra={"leader": self.leader})

    async def give_up(self) -> None:
        """Let another one act at once."""
        if self.is_leader and self._watched:
            self._renewed_at = None
            await self._api.put_lease(replace(self._watched.lease, holder=""), self._now(), self._lease_s)

    async def _look(self) -> None:
        asked_at = self._clock()
        lease = await self._api.lease()
        self._watch(lease)
        wanted = candidate(self._watched, self._me, self._clock(), self._lease_s)
        if wanted is None:
            self._renewed_at = None
            return
        self._watch(await self._api.put_lease(wanted, self._now(), self._lease_s))
        self._renewed_at = asked_at

    def _watch(self, lease: Lease | None) -> None:
        if lease is None:
            self._watched = None
        elif self._watched is None or lease != self._watched.lease:
            self._watched = Watched(lease, self._clock())

    def _doubt(self, error: ApiError) -> None:
        if str(error) != self.trouble:
            log.warning("the Lease cannot be had", extra={"reason": str(error)})
        self.trouble = str(error)

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
