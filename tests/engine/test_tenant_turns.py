"""Deficit round robin: equal shares of what is competed for, nothing lost of what is not."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from twostep.engine.tenant_turns import NO_TURNS, Turns, share_out

QUANTUM = 100


def test_a_lone_tenant_gets_everything() -> None:
    shares = share_out(NO_TURNS, {"a": 1000}, (), 350, QUANTUM)
    assert (dict(shares.tokens), shares.turns) == ({"a": 350}, Turns(("a",), {"a": 50}))


def test_what_one_does_not_want_is_everybodys() -> None:
    shares = share_out(NO_TURNS, {"a": 30, "b": 1000, "c": 0}, (), 500, QUANTUM)
    assert shares.tokens == {"a": 30, "b": 470}


def test_who_comes_late_waits_for_no_more_than_a_turn_of_each() -> None:
    turns = share_out(NO_TURNS, {"a": 1000, "b": 1000}, (), 130, QUANTUM).turns
    assert turns == Turns(("b", "a"), {"b": 70})
    assert share_out(turns, {"a": 1000, "b": 1000, "new": 40}, (), 210, QUANTUM).tokens == {"b": 70, "a": 100, "new": 40}


def test_who_has_nothing_left_loses_the_rest_of_its_turn() -> None:
    turns = share_out(NO_TURNS, {"a": 40, "b": 1000}, (), 100, QUANTUM).turns
    assert turns == Turns(("b", "a"), {"b": 40})
    assert share_out(turns, {"b": 1000}, (), 10, QUANTUM).turns == Turns(("b",), {"b": 30})


def test_who_has_lost_its_blocks_keeps_place_and_credit() -> None:
    turns = Turns(("a", "b"), {"a": 60})
    while_away = share_out(turns, {"b": 1000}, {"a"}, 30, QUANTUM)
    assert (while_away.tokens, while_away.turns) == ({"b": 30}, Turns(("a", "b"), {"a": 60, "b": 70}))
    assert share_out(while_away.turns, {"a": 500, "b": 970}, (), 100, QUANTUM).tokens == {"a": 60, "b": 40}


@given(st.randoms(use_true_random=False))
def test_nothing_is_left_while_anybody_wants_it_and_nobody_is_a_turn_behind(chance: Random) -> None:
    tenants, turns, served = "abcd"[: chance.randint(1, 4)], NO_TURNS, Counter[str]()
    for _ in range(60):
        budget, wanted = chance.randint(0, 300), dict.fromkeys(tenants, 10_000)
        shares = share_out(turns, wanted, (), budget, QUANTUM)
        turns = shares.turns
        served.update(shares.tokens)
        assert sum(shares.tokens.values()) == budget
        assert max(served.values(), default=0) - min(served[tenant] for tenant in tenants) <= QUANTUM
