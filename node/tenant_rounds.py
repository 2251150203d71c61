"""How many turns each tenant has had: who waits has them counted, so that room which comes back bit by bit is shared, too."""

from collections.abc import Collection, Mapping


class TenantRounds:
    """The turns that tenants with waiting requests have had. Owned by the control thread.

    Who comes anew starts where the one stands that had fewest: neither before those who have waited, nor behind all of theirs.
    """

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def of(self, tenants: Collection[str]) -> Mapping[str, int]:
        """Return the turns of `tenants`, all of those who have requests waiting; others are forgotten."""
        first = min((turns for tenant, turns in self._turns.items() if tenant in tenants), default=0)
        self._turns = {tenant: self._turns.get(tenant, first) for tenant in tenants}
        return self._turns

    def take(self, tenant: str) -> None:
        """A waiting request of `tenant` has got its room."""
        self._turns[tenant] = self._turns.get(tenant, 0) + 1
