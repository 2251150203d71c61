"""How much room each tenant has had: who waits has it counted, so that room which comes back bit by bit is shared, too."""

from collections.abc import Collection, Mapping


class TenantShares:
    """The tokens that tenants with waiting requests have got room for. Owned by the control thread.

    Who comes anew starts where the one stands that had fewest: neither before those who have waited, nor behind all of theirs.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def of(self, tenants: Collection[str]) -> Mapping[str, int]:
        """Return the tokens of `tenants`, all of those who have requests waiting; others are forgotten."""
        fewest = min((tokens for tenant, tokens in self._tokens.items() if tenant in tenants), default=0)
        self._tokens = {tenant: self._tokens.get(tenant, fewest) for tenant in tenants}
        return self._tokens

    def take(self, tenant: str, num_tokens: int) -> None:
        """A waiting request of `tenant` has got its room. Who stood before it could not go, and is owed nothing."""
        before = self._tokens.get(tenant, 0)
        self._tokens = {one: max(had, before) for one, had in self._tokens.items()} | {tenant: before + num_tokens}
