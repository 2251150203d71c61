"""Nodes that the router's own configuration lists."""

from collections.abc import AsyncIterator, Sequence

from twostep.router.discovery.member import Freshness, Member


class StaticDiscovery:
    """Nothing ever changes."""

    source = "configuration"

    def __init__(self, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self.freshness = Freshness()
        self._members = [
            *(Member("prefill", address) for address in prefill),
            *(Member("decode", address) for address in decode),
        ]

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        self.freshness.confirm()
        yield self._members
