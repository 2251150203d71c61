"""Who is served first, on a clock that tests move."""

import math
from typing import Any

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules, Timing
from twostep.engine.ranking import Claim, Ranking, RankPolicy

POLICY = RankPolicy(urgent_s=1.0, aging_s=10.0)


def order(now: float, *claims: Claim, num_tokens: int = 100, prefill_token_s: float = 0.001) -> list[int]:
    """Return the arrivals of `claims`, each of `num_tokens`, in the order of their ranks."""
    ranking = Ranking(now, prefill_token_s, POLICY)
    return [rank[-1] for rank in sorted(ranking.rank(claim, num_tokens) for claim in claims)]


def test_without_deadlines_who_came_first_is_first() -> None:
    assert order(5.0, Claim(3), Claim(1), Claim(2)) == [1, 2, 3]


def test_the_least_slack_comes_first_when_time_is_short() -> None:
    assert order(0.0, Claim(1, deadline=0.9), Claim(2, deadline=0.5), Claim(3, wanted_by=0.3)) == [3, 2, 1]


def test_slack_is_what_is_left_after_the_tokens_are_computed() -> None:
    ranking = Ranking(0.0, 0.001, POLICY)
    long, short = Claim(1, deadline=0.9), Claim(2, deadline=0.5)
    assert ranking.rank(long, 800) < ranking.rank(short, 100)
    assert ranking.rank(long, 100) > ranking.rank(short, 100)


def test_a_far_deadline_is_no_hurry_and_priority_counts() -> None:
    assert order(0.0, Claim(1, deadline=600.0), Claim(2, priority=-1), Claim(3, priority=1, deadline=1.1)) == [2, 1, 3]


def test_slacks_that_hardly_differ_leave_it_to_priority() -> None:
    assert order(0.0, Claim(1, deadline=0.61), Claim(2, priority=-1, deadline=0.64)) == [2, 1]


def test_what_was_no_hurry_becomes_one_as_time_passes() -> None:
    patient, dear = Claim(1, priority=5, deadline=10.0), Claim(2)
    assert order(8.0, patient, dear) == [2, 1]
    assert order(9.5, patient, dear) == [1, 2]


def test_who_comes_too_late_comes_last_whatever_its_priority() -> None:
    assert order(0.0, Claim(1, priority=-9, deadline=0.05), Claim(2, priority=9)) == [2, 1]
    assert order(0.0, Claim(1, wanted_by=0.05), Claim(2, wanted_by=0.15)) == [2, 1]


def test_age_makes_up_for_priority_level_by_level() -> None:
    old, dear = Claim(1, priority=2, born_at=0.0), Claim(2, priority=0, born_at=19.0)
    assert order(19.9, old, dear) == [2, 1]
    assert order(20.0, old, dear) == [1, 2]


def test_a_low_class_is_passed_over_for_a_bounded_time() -> None:
    """However many of the high class keep coming, the low one's turn comes after ten seconds for each level."""
    low = Claim(0, priority=3)
    passed_over = [now for now in range(60) if order(now, low, Claim(1, born_at=now))[0] == 1]
    assert passed_over == list(range(30))


@pytest.mark.parametrize(("num_tokens", "is_hopeless"), [(100, False), (200, False), (201, True)])
def test_a_request_is_hopeless_when_even_alone_it_would_come_too_late(num_tokens: int, is_hopeless: bool) -> None:
    assert Ranking(0.0, 1.0, POLICY).is_hopeless(Claim(1, deadline=200.0), num_tokens) is is_hopeless


def test_a_wish_that_cannot_be_met_is_not_hopeless() -> None:
    assert not Ranking(5.0, 1.0, POLICY).is_hopeless(Claim(1, wanted_by=1.0), 100)


def waiting(*tenants: str, **wishes: ServiceLevel) -> list[tuple[Request, Timing]]:
    levels = [wishes.get(tenant, ServiceLevel(tenant=tenant)) for tenant in tenants]
    requests = [Request(RequestId("r"), (1, 2), SamplingParams(0), StopRules(5), level=level) for level in levels]
    return [(request, Timing(age_s=2.0, remaining_s=600.0)) for request in requests]


def test_those_who_wait_take_turns_by_tenant() -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    assert ranking.in_turns(waiting("a", "a", "a", "b", "c", "b"), {}) == [0, 3, 4, 1, 5, 2]
    assert ranking.in_turns(waiting("a", "a", "a"), {}) == [0, 1, 2]


def test_who_has_had_more_room_comes_later() -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    assert ranking.in_turns(waiting("a", "a", "b", "b"), {"a": 1}) == [2, 0, 3, 1]
    assert ranking.in_turns(waiting("a", "a", "b", "b"), {"a": 7, "b": 7}) == [0, 2, 1, 3]


def aged(age_s: float, remaining_s: float = 600.0, **level: Any) -> tuple[Request, Timing]:
    request = Request(RequestId("r"), (1, 2), SamplingParams(0), StopRules(5), level=ServiceLevel(**level))
    return request, Timing(age_s, remaining_s)


@pytest.mark.parametrize("wish_s", [None, 0.5])
def test_who_waits_without_a_wish_or_has_missed_it_is_passed_by_wishes_for_a_bounded_time(wish_s: float | None) -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    passed = [
        age_s for age_s in range(1, 30) if ranking.in_turns([aged(age_s, ttft_s=wish_s), aged(0.1, ttft_s=0.5)], {}) == [1, 0]
    ]
    assert passed == list(range(1, 10))


def test_a_low_class_that_waits_is_not_as_urgent_as_wishes_before_it_precedes_new_ones_of_the_usual_class() -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    low = [aged(age_s, priority=2) for age_s in (11.0, 29.0, 31.0)]
    assert [ranking.in_turns([one, aged(0.1)], {}) for one in low] == [[1, 0], [0, 1], [0, 1]]
    assert [ranking.in_turns([one, aged(0.1, ttft_s=0.5)], {}) for one in low] == [[1, 0], [1, 0], [0, 1]]


def test_the_oldest_of_those_who_have_waited_long_comes_first_by_its_grown_priority() -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    assert ranking.in_turns([aged(11.0), aged(25.0, priority=1), aged(31.0, priority=1, ttft_s=1.0)], {}) == [2, 0, 1]


def test_a_dearer_request_precedes_what_has_grown_old_in_a_lower_class_and_new_wishes_of_the_usual_one() -> None:
    """Each alone would be easy; all three together have one order only."""
    ranking = Ranking(100.0, 0.001, POLICY)
    dear, old, hasty = aged(0.1, priority=-3), aged(11.0), aged(0.1, ttft_s=0.5)
    assert ranking.in_turns([hasty, old, dear], {}) == [2, 1, 0]


def test_among_dear_requests_of_one_priority_the_least_slack_comes_first_and_a_wish_that_was_missed_counts_no_more() -> None:
    ranking = Ranking(100.0, 0.001, POLICY)
    missed, patient, hasty = (aged(0.6, priority=-1, ttft_s=wish_s) for wish_s in (0.5, None, 0.9))
    assert ranking.in_turns([missed, patient, hasty, aged(0.1, priority=-2)], {}) == [3, 2, 0, 1]


def test_who_cannot_be_served_in_time_comes_last_however_long_it_has_waited() -> None:
    assert Ranking(100.0, 0.001, POLICY).in_turns([aged(50.0, remaining_s=0.001), aged(0.1)], {}) == [1, 0]


def test_a_wish_for_the_first_token_counts_from_the_arrival_at_the_router() -> None:
    hasty, late = ServiceLevel(tenant="h", ttft_s=2.5), ServiceLevel(tenant="l", ttft_s=1.9)
    ranking = Ranking(100.0, 0.001, POLICY)
    assert ranking.in_turns(waiting("a", "h", "l", h=hasty, l=late), {}) == [1, 0, 2]


def test_a_claim_without_any_wish_waits_for_ever() -> None:
    assert (Claim(1).wanted_by, Claim(1).deadline) == (math.inf, math.inf)
