"""Decides which nodes should know each other: all, where they are few; else each the nearest of the other pool. Pure."""

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import nsmallest

from twostep.router.discovery.member import Member

Ranked = tuple[int, str, str, Member]
"""How far somebody is, then its names, so that nobody is as far as anybody else."""
CHANCES = 1 << 32
SPREAD = 2_654_435_761
"""Knuth's multiplier: spreads numbers that differ little over all of 32 bits."""
SPARE = 2
"""How many times its limit each node keeps in order, so that it seldom has to look at all others again."""


class Peering:
    """Every node chooses at most `limit` others; two know each other when one has chosen the other. Routers agree on it.

    Adding a node costs a look at each node of the other pool; removing one, a look at those that had it in mind.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._members: dict[str, dict[Member, Member]] = {"prefill": {}, "decode": {}}
        self._near: dict[Member, list[Ranked]] = {}
        """Everybody that is no further than the last of the list, the nearest first; the first `limit` are chosen."""
        self._chosen_by: dict[Member, set[Member]] = {}
        self._answers: dict[Member, list[Member]] = {}
        self._marks: dict[Member, int] = {}

    def add(self, member: Member) -> None:
        """Let a node choose, and be chosen. One that is there already is replaced: it may have moved."""
        self.remove(member)
        self._members[member.role][member] = member
        self._chosen_by[member] = set()
        self._marks[member] = zlib.crc32(f"{member.role} {member.id} {member.address}".encode())
        for other in self._others(member):
            self._consider(other, member)
        self._look_around(member)

    def remove(self, member: Member) -> None:
        """Forget a node; whoever had chosen it chooses another."""
        # As it was when the others ranked it: what is given now may say that it has moved.
        known = self._members[member.role].pop(member, None)
        if known is None:
            return
        for ranked in self._near.pop(known)[: self._limit]:
            self._part(known, ranked[-1])
        for other in self._others(known):
            self._lose(other, known)
        del self._chosen_by[known], self._marks[known]
        self._answers.pop(member, None)

    def peers_of(self, member: Member) -> Sequence[Member]:
        """Return whom it should know, the nearest first; nobody when it is not there."""
        if member not in self._near:
            return ()
        if member not in self._answers:
            chosen = [ranked[-1] for ranked in self._near[member][: self._limit]]
            others = self._chosen_by[member].difference(chosen)
            self._answers[member] = chosen + [ranked[-1] for ranked in sorted(self._rank(member, other) for other in others)]
        return self._answers[member]

    def _look_around(self, member: Member) -> None:
        """Let `member` put all others in order, and choose."""
        self._near[member] = nsmallest(SPARE * self._limit, (self._rank(member, other) for other in self._others(member)))
        for ranked in self._near[member][: self._limit]:
            self._meet(member, ranked[-1])

    def _consider(self, member: Member, candidate: Member) -> None:
        """Let `member` take a new node into account."""
        near = self._near[member]
        ranked = self._rank(member, candidate)
        # The candidate is among the others already.
        knows_all_others = len(near) == self._num_others(member) - 1
        place = bisect_left(near, ranked)
        if place == len(near) and not knows_all_others:
            return
        near.insert(place, ranked)
        if place < self._limit:
            self._meet(member, candidate)
            for pushed_out in near[self._limit : self._limit + 1]:
                self._part(member, pushed_out[-1])
        del near[SPARE * self._limit :]

    def _lose(self, member: Member, gone: Member) -> None:
        """Let `member` do without a node that is gone."""
        near = self._near[member]
        place = bisect_left(near, self._rank(member, gone))
        if place == len(near) or near[place][-1] != gone:
            return
        del near[place]
        if place < self._limit:
            self._part(member, gone)
            for moved_up in near[self._limit - 1 : self._limit]:
                self._meet(member, moved_up[-1])
        if len(near) < self._limit and len(near) < self._num_others(member):
            self._look_around(member)

    def _rank(self, member: Member, other: Member) -> Ranked:
        """It is as far one way as the other. Equally far pairs differ by chance, lest everybody chooses the same few."""
        chance = (self._marks[member] ^ self._marks[other]) * SPREAD % CHANCES
        return distance(member, other) * CHANCES + chance, other.id, other.address, other

    def _meet(self, member: Member, other: Member) -> None:
        self._chosen_by[other].add(member)
        self._forget_answers(member, other)

    def _part(self, member: Member, other: Member) -> None:
        self._chosen_by[other].discard(member)
        self._forget_answers(member, other)

    def _forget_answers(self, *members: Member) -> None:
        for member in members:
            self._answers.pop(member, None)

    def _others(self, member: Member) -> Iterator[Member]:
        return iter(self._members["decode" if member.role == "prefill" else "prefill"].values())

    def _num_others(self, member: Member) -> int:
        return len(self._members["decode" if member.role == "prefill" else "prefill"])


def distance(one: Member, other: Member) -> int:
    """Return 0 on one machine, 1 in one zone, else 2; what is unknown is far."""
    if one.host and one.host == other.host:
        return 0
    return 1 if one.zone and one.zone == other.zone else 2
