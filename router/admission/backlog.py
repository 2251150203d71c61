"""Who asks for what, by tenant and priority, and how much of it comes before a request. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from twostep.router.admission.demand import Demand, DemandSum, Entry, ServiceClass


class Backlog:
    """The demands of some entries, together for each tenant and priority."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, DemandSum]] = {}

    def add(self, entry: Entry) -> None:
        """Count an entry."""
        self.add_demand(entry.service_class, entry.demand)

    def add_demand(self, service_class: ServiceClass, demand: Demand) -> None:
        """Count what a tenant asks for at a priority."""
        tenant, priority = service_class
        self._sums.setdefault(tenant, {}).setdefault(priority, DemandSum()).add(demand)

    def remove(self, entry: Entry) -> None:
        """Count an entry no more that was added."""
        sums = self._sums[entry.tenant]
        sums[entry.priority].remove(entry.demand)
        if not sums[entry.priority].num_demands:
            del sums[entry.priority]
        if not sums:
            del self._sums[entry.tenant]

    def of_tenants(self) -> Iterable[tuple[str, DemandSum]]:
        """Return each tenant with all that it asks for."""
        return ((tenant, sum(sums.values(), DemandSum())) for tenant, sums in self._sums.items())

    def as_urgent_as(self, entry: Entry) -> DemandSum:
        """Return what the entry's tenant asks for that goes no later than the entry by its priority."""
        sums = self._sums.get(entry.tenant, {})
        return sum((one for priority, one in sums.items() if priority <= entry.priority), DemandSum())


def ahead_of(entry: Entry, backlogs: Sequence[Backlog], turn_tokens: int) -> DemandSum:
    """Return what is served before `entry` where tenants take turns of `turn_tokens` of KV by deficit round robin.

    That is what its own tenant asks for as urgently, and of every other tenant as many turns as that takes.
    """
    ahead = sum((one.as_urgent_as(entry) for one in backlogs), DemandSum())
    num_turns = -(-(ahead.kv_tokens + entry.demand.kv_tokens) // turn_tokens)
    others: defaultdict[str, DemandSum] = defaultdict(DemandSum)
    for backlog in backlogs:
        for tenant, asked in backlog.of_tenants():
            if tenant != entry.tenant:
                others[tenant] += asked
    return sum((asked.first(num_turns * turn_tokens) for asked in others.values()), ahead)
