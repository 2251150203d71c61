"""What comes into the queue lately, by tenant and priority: some of it will go before who waits now. Pure."""

import math

from twostep.router.admission.backlog import Backlog
from twostep.router.admission.demand import Demand, Entry, ServiceClass

MEMORY_S = 20.0
"""What came so long ago counts for 1/e of what comes now."""
MIN_SEEN_S = 5.0
"""Whoever is new is taken to have come for so long: a burst tells of no rate."""
FORGOTTEN_S = 10 * MEMORY_S
"""Of whom nothing has come for so long, nothing is expected."""
MAX_CLASSES = 1024
"""Of so many tenants and priorities the rates are known, of those that came last."""


class _Rate:
    """How much comes in a second after the first: a mean in which the latest counts most."""

    def __init__(self, now: float) -> None:
        self._sum = Demand(0.0, 0)
        self._first = self.last = now

    def record(self, demand: Demand, now: float) -> None:
        self._sum = _scaled(self._sum, self._kept(now))
        self._sum = Demand(self._sum.compute_s + demand.compute_s, self._sum.kv_tokens + demand.kv_tokens)
        self.last = now

    def within(self, seconds: float, now: float) -> Demand:
        """Return what will come within so many seconds, if it goes on so."""
        seen_s = MEMORY_S * (1.0 - math.exp(-max(MIN_SEEN_S, now - self._first) / MEMORY_S))
        return _scaled(self._sum, self._kept(now) * seconds / seen_s)

    def _kept(self, now: float) -> float:
        return math.exp((self.last - now) / MEMORY_S)


def _scaled(demand: Demand, factor: float) -> Demand:
    return Demand(demand.compute_s * factor, round(demand.kv_tokens * factor))


class Arrivals:
    """Who was let into the queue lately."""

    def __init__(self) -> None:
        self._rates: dict[ServiceClass, _Rate] = {}
        """Whose last arrival is the oldest comes first."""

    def record(self, entry: Entry, now: float) -> None:
        """The entry has come into the queue."""
        if rate := self._rates.pop(entry.service_class, None):
            rate.record(entry.demand, now)
        self._rates[entry.service_class] = rate or _Rate(now)
        while len(self._rates) > MAX_CLASSES or now - self._rates[next(iter(self._rates))].last > FORGOTTEN_S:
            del self._rates[next(iter(self._rates))]

    def outranking(self, entry: Entry, seconds: float, now: float) -> Backlog:
        """Return what will come within so many seconds that may go before `entry`, though that is there now."""
        found = Backlog()
        for (tenant, priority), rate in self._rates.items():
            if tenant != entry.tenant or priority < entry.priority:
                found.add_demand((tenant, priority), rate.within(seconds, now))
        return found
