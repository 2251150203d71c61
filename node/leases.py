"""Decides which requests still have a living router: each heartbeat lists all of them, and silence ends them all."""

from dataclasses import dataclass, field

from twostep.core.clock import Clock
from twostep.core.ids import RequestId, RouterId

MAX_MISSES = 2
"""A heartbeat that was on its way when the request came does not list it yet; the second one has to."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One router's list of living requests. `sequence` grows by the heartbeat; `lease_s` counts from receipt.

    Nobody takes the tokens of those that are `held`, for now.
    """

    router: RouterId
    sequence: int
    lease_s: float
    live: frozenset[RequestId]
    held: frozenset[RequestId] = frozenset()


@dataclass(frozen=True, slots=True)
class HeartbeatVerdict:
    """`abandoned` were unlisted twice and have to end; `unknown` are listed but not here."""

    abandoned: tuple[RequestId, ...] = ()
    unknown: tuple[RequestId, ...] = ()
    is_stale: bool = False


@dataclass(slots=True)
class _Lease:
    lease_s: float
    heard_at: float
    sequence: int = -1
    misses: dict[RequestId, int] = field(default_factory=dict)


class Leases:
    """The living requests of every router. Owned by the control thread."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._leases: dict[RouterId, _Lease] = {}
        self._routers: dict[RequestId, RouterId] = {}

    def own(self, request: RequestId, router: RouterId) -> None:
        """Record that `router` keeps `request` alive from now on."""
        self.disown(request)
        self._lease_of(router).misses[request] = 0
        self._routers[request] = router

    def disown(self, request: RequestId) -> None:
        """Forget a request that has ended; one that is not known is no error."""
        router = self._routers.pop(request, None)
        if router is not None:
            self._leases[router].misses.pop(request, None)

    def hear(self, beat: Heartbeat) -> HeartbeatVerdict:
        """Renew the router's lease and say which of its requests it no longer lists and which it lists in vain."""
        lease = self._lease_of(beat.router)
        if beat.sequence <= lease.sequence:
            return HeartbeatVerdict(is_stale=True)
        lease.sequence, lease.lease_s, lease.heard_at = beat.sequence, beat.lease_s, self._clock()
        lease.misses = {request: 0 if request in beat.live else count + 1 for request, count in lease.misses.items()}
        return HeartbeatVerdict(
            abandoned=tuple(request for request, count in lease.misses.items() if count >= MAX_MISSES),
            unknown=tuple(sorted(beat.live - lease.misses.keys())),
        )

    def expire(self) -> dict[RouterId, tuple[RequestId, ...]]:
        """Forget the routers that were silent for a whole lease; returns them with the requests they leave behind."""
        now = self._clock()
        silent = [router for router, lease in self._leases.items() if now - lease.heard_at > lease.lease_s]
        return {router: self._forget(router) for router in silent}

    def _forget(self, router: RouterId) -> tuple[RequestId, ...]:
        orphans = tuple(self._leases.pop(router).misses)
        for request in orphans:
            del self._routers[request]
        return orphans

    def _lease_of(self, router: RouterId) -> _Lease:
        return self._leases.setdefault(router, _Lease(self._lease_s, self._clock()))
