"""Who should know whom: everybody in a small cluster, the nearest in a large one, and always both or neither."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from twostep.router.discovery.member import Member, Role
from twostep.router.nodes.peering import Peering, distance


def node(role: Role, name: str, *, zone: str = "", host: str = "") -> Member:
    return Member(role, f"{name}:1", id=name, zone=zone, host=host)


def ids(members: Sequence[Member]) -> list[str]:
    return [member.id for member in members]


def test_where_they_are_few_everybody_knows_everybody_of_the_other_pool() -> None:
    peering = Peering(4)
    prefill, decode = [node("prefill", f"p{n}") for n in range(3)], [node("decode", f"d{n}") for n in range(3)]
    for member in (*prefill, *decode):
        peering.add(member)
    assert all(set(peering.peers_of(member)) == set(decode) for member in prefill)
    assert all(set(peering.peers_of(member)) == set(prefill) for member in decode)


def test_the_same_machine_comes_first_then_the_same_zone() -> None:
    peering = Peering(8)
    one = node("prefill", "p", zone="a", host="m1")
    for member in (
        node("decode", "elsewhere", zone="b", host="m9"),
        node("decode", "unknown"),
        node("decode", "here", zone="a", host="m1"),
        node("decode", "near", zone="a", host="m2"),
        one,
    ):
        peering.add(member)
    assert ids(peering.peers_of(one))[:2] == ["here", "near"]
    assert distance(one, node("decode", "unknown")) == 2


def test_each_chooses_no_more_than_its_limit_and_nobody_is_left_alone() -> None:
    peering = Peering(3)
    prefill, decode = [node("prefill", f"p{n}") for n in range(5)], [node("decode", f"d{n}") for n in range(40)]
    for member in (*prefill, *decode):
        peering.add(member)
    assert all(len(peering.peers_of(member)) >= 3 for member in (*prefill, *decode))
    assert sum(len(peering.peers_of(member)) for member in decode) <= 3 * len(decode) + 3 * len(prefill)


def test_whatever_comes_and_goes_two_know_each_other_or_neither_does_and_the_order_does_not_matter() -> None:
    chance, names = random.Random(7), count()
    peering, members = Peering(3), list[Member]()
    for _ in range(300):
        if members and chance.random() < 0.45:
            peering.remove(members.pop(chance.randrange(len(members))))
        elif members and chance.random() < 0.2:
            moved = chance.randrange(len(members))
            members[moved] = replace(members[moved], zone=chance.choice("ab"), host=chance.choice("123"))
            peering.add(members[moved])
        else:
            role: Role = "prefill" if chance.random() < 0.5 else "decode"
            members.append(node(role, f"n{next(names)}", zone=chance.choice("ab"), host=chance.choice("123")))
            peering.add(members[-1])
        knows = {member: set(peering.peers_of(member)) for member in members}
        assert all(one in knows[other] for one, others in knows.items() for other in others)
    fresh = Peering(3)
    for member in reversed(members):
        fresh.add(member)
    assert {member: peering.peers_of(member) for member in members} == {member: fresh.peers_of(member) for member in members}


def test_a_node_that_is_gone_or_was_never_there_knows_nobody() -> None:
    peering = Peering(2)
    one, other = node("prefill", "p"), node("decode", "d")
    peering.add(one)
    peering.add(other)
    peering.remove(other)
    peering.remove(other)
    assert [*peering.peers_of(other), *peering.peers_of(one)] == []
