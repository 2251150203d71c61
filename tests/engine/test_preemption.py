"""Who gives its blocks up."""

from typing import Any

import pytest

from twostep.core.ids import RequestId
from twostep.engine.preemption import SparePolicy, Tenure, choose_victim

POLICY = SparePolicy(min_run_tokens=16, max_preemptions=3)


def tenure(name: str, arrival: int, **more: Any) -> Tenure:
    known = {"priority": 0, "num_lost_blocks": 1, "num_run_tokens": 100, "num_preemptions": 0}
    return Tenure(RequestId(name), arrival, **(known | more))


BASE = tenure("base", 5)


@pytest.mark.parametrize(
    ("other", "victim"),
    [
        (tenure("younger", 6), "younger"),
        (tenure("older", 4), "base"),
        (tenure("less dear", 1, priority=1), "less dear"),
        (tenure("dearer", 9, priority=-1), "base"),
        (tenure("loses less", 1, num_lost_blocks=0), "loses less"),
        (tenure("loses more", 9, num_lost_blocks=2), "base"),
        (tenure("less dear, loses more", 1, priority=1, num_lost_blocks=50), "less dear, loses more"),
        (tenure("preempted before", 9, num_preemptions=1), "base"),
        (tenure("loses less, preempted before", 1, num_lost_blocks=0, num_preemptions=2), "loses less, preempted before"),
        (tenure("fresh", 9, priority=9, num_run_tokens=15), "base"),
        (tenure("fresh no more", 9, num_run_tokens=16), "fresh no more"),
        (tenure("preempted enough", 9, priority=9, num_preemptions=3), "base"),
        (tenure("paused", 1, priority=-9, num_run_tokens=0, num_preemptions=9, is_paused=True), "paused"),
        (tenure("being sent", 9, priority=9, num_lost_blocks=0, is_transferred=True), "base"),
    ],
    ids=lambda value: value.request if isinstance(value, Tenure) else None,
)
def test_who_gives_way_to_whom(other: Tenure, victim: str) -> None:
    assert choose_victim([BASE, other], POLICY) == victim
    assert choose_victim([other, BASE], POLICY) == victim


def test_the_last_one_gives_way_though_it_is_spared() -> None:
    assert choose_victim([tenure("last", 1, num_run_tokens=0, num_preemptions=9)], POLICY) == "last"


def test_fresh_ones_give_way_before_those_that_were_preempted_enough() -> None:
    assert choose_victim([tenure("fresh", 1, num_run_tokens=0), tenure("enough", 2, num_preemptions=3)], POLICY) == "fresh"


def test_nobodys_blocks_are_taken_while_they_are_being_sent() -> None:
    assert choose_victim([tenure("sent", 1, is_transferred=True)], POLICY) is None
    assert choose_victim([], POLICY) is None
