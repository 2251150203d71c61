"""Decides which nodes should know each other: all, where they are few; else each the nearest of the other pool. Pure."""

import zlib
from bisect import insort
from collections.abc import Iterator
from heapq import nsmallest

from twostep.router.discovery.member import Member

Rank = tuple[int, int, str, str]
"""Distance, then a number that is different for each pair, so that not everybody chooses the same few."""


class Peering:
    """Every node chooses at most `limit` others; two know each other when one has chosen the other. Routers agree on it.

    Adding or removing a node costs a look at each node of the other pool, and nothing for its own pool.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._members: dict[str, dict[Member, Member]] = {"prefill": {}, "decode": {}}
        self._chosen: dict[Member, list[tuple[Rank, Member]]] = {}
        self._chosen_by: dict[Member, set[Member]] = {}

    def add(self, member: Member) -> None:
        """Let a node choose, and be chosen. One that is there already is replaced: it may have moved."""
        self.remove(member)
        self._members[member.role][member] = member
        self._chosen_by[member] = set()
        for other in self._others(member):
            self._consider(other, member)
        self._choose(member)

    def remove(self, member: Member) -> None:
        """Forget a node; whoever had chosen it chooses again."""
        if self._members[member.role].pop(member, None) is None:
            return
        for _, other in self._chosen.pop(member):
            self._chosen_by[other].discard(member)
        for other in self._chosen_by.pop(member):
            self._choose(other)

    def peers_of(self, member: Member) -> list[Member]:
        """Return whom it should know, the nearest first; nobody when it is not there."""
        chosen = [other for _, other in self._chosen.get(member, ())]
        others = self._chosen_by.get(member, set()).difference(chosen)
        return chosen + sorted(others, key=lambda other: rank(member, other))

    def _consider(self, member: Member, candidate: Member) -> None:
        """Let `member` choose the candidate, if it is nearer than one of those it has chosen."""
        chosen = self._chosen[member]
        ranked = (rank(member, candidate), candidate)
        if len(chosen) == self._limit and chosen[-1][0] < ranked[0]:
            return
        insort(chosen, ranked, key=lambda pair: pair[0])
        self._chosen_by[candidate].add(member)
        if len(chosen) > self._limit:
            _, dropped = chosen.pop()
            self._chosen_by[dropped].discard(member)

    def _choose(self, member: Member) -> None:
        """Let `member` choose among all."""
        for _, other in self._chosen.get(member, ()):
            self._chosen_by.get(other, set()).discard(member)
        ranked = ((rank(member, other), other) for other in self._others(member))
        self._chosen[member] = nsmallest(self._limit, ranked, key=lambda pair: pair[0])
        for _, other in self._chosen[member]:
            self._chosen_by[other].add(member)

    def _others(self, member: Member) -> Iterator[Member]:
        return iter(self._members["decode" if member.role == "prefill" else "prefill"].values())


def rank(one: Member, other: Member) -> Rank:
    """Return how far `other` is; the same as the other way round but for the names at the end, which only break ties."""
    first, second = sorted((f"{one.id} {one.address}", f"{other.id} {other.address}"))
    return distance(one, other), zlib.crc32(f"{first}|{second}".encode()), other.id, other.address


def distance(one: Member, other: Member) -> int:
    """Return 0 on one machine, 1 in one zone, else 2; what is unknown is far."""
    if one.host and one.host == other.host:
        return 0
    return 1 if one.zone and one.zone == other.zone else 2
