"""How much is served before a request, and what will have come until then."""

import pytest

from twostep.core.ids import RequestId
from twostep.router.admission.arrivals import FORGOTTEN_S, MAX_CLASSES, MEMORY_S, Arrivals
from twostep.router.admission.backlog import Backlog, ahead_of
from twostep.router.admission.demand import NOTHING, Demand, DemandSum, Entry

TURN = 1000


def entry(tenant: str = "mine", *, priority: int = 0, kv_tokens: int = 500) -> Entry:
    return Entry(RequestId("asked"), Demand(1.0, kv_tokens), 60.0, priority, tenant)


def backlog(*entries: Entry) -> Backlog:
    made = Backlog()
    for one in entries:
        made.add(one)
    return made


@pytest.mark.parametrize(("mine", "turns"), [((), 1), ((400,), 1), ((600,), 2), ((600, 2000), 4)])
def test_other_tenants_have_as_many_turns_as_the_own_needs(mine: tuple[int, ...], turns: int) -> None:
    waiting = backlog(*(entry(kv_tokens=tokens) for tokens in mine), *(entry("greedy") for _ in range(100)), entry("small"))
    ahead = ahead_of(entry(), [waiting], TURN)
    assert ahead.kv_tokens == sum(mine) + turns * TURN + 500
    # 500 tokens take the greedy one a second.
    assert ahead.compute_s == pytest.approx(len(mine) + turns * 2.0 + 1.0)


def test_of_the_own_tenant_counts_what_is_as_urgent() -> None:
    waiting = backlog(entry(priority=-1, kv_tokens=1), entry(kv_tokens=10), entry(priority=1, kv_tokens=100))
    ahead = [ahead_of(entry(priority=level), [waiting], TURN).kv_tokens for level in (-1, 0, 1)]
    assert ahead == [1, 11, 111]
    assert ahead_of(entry(), [waiting, backlog(entry(kv_tokens=7))], TURN) == DemandSum(3.0, 18, 3)


def test_who_leaves_is_counted_no_more() -> None:
    waiting = backlog(entry("greedy"), entry("greedy", priority=3))
    waiting.remove(entry("greedy"))
    assert dict(waiting.of_tenants()) == {"greedy": DemandSum(1.0, 500, 1)}
    waiting.remove(entry("greedy", priority=3))
    assert ahead_of(entry(), [waiting], TURN) == NOTHING


def test_arrivals_are_expected_at_their_rate_where_they_may_go_first() -> None:
    arrivals = Arrivals()
    for second in range(200):
        for one in (entry("other"), entry(priority=-1), entry(), entry(priority=1)):
            arrivals.record(one, float(second))
    coming = dict(arrivals.outranking(entry(), 10.0, 199.0).of_tenants())
    assert coming["other"].compute_s == pytest.approx(10.0, rel=0.1)
    assert coming["mine"].kv_tokens == pytest.approx(5000, rel=0.1)


def test_neither_one_request_nor_a_burst_tells_of_a_rate() -> None:
    arrivals = Arrivals()
    arrivals.record(entry("other"), 0.0)
    assert dict(arrivals.outranking(entry(), 100.0, 0.0).of_tenants())["other"].compute_s == 0.0
    for _ in range(10):
        arrivals.record(entry("other"), 0.0)
    coming = dict(arrivals.outranking(entry(), 1.0, 0.0).of_tenants())
    assert 1.0 < coming["other"].compute_s < 3.0


def test_of_many_tenants_those_that_came_last_are_known() -> None:
    arrivals = Arrivals()
    for number in range(MAX_CLASSES + 10):
        arrivals.record(entry(f"tenant {number}"), 0.0)
    known = dict(arrivals.outranking(entry(), 1.0, 0.0).of_tenants())
    assert known.keys() == {f"tenant {number}" for number in range(10, MAX_CLASSES + 10)}


def test_of_whom_nothing_comes_nothing_is_expected() -> None:
    arrivals = Arrivals()
    arrivals.record(entry("other"), 0.0)
    arrivals.record(entry("other"), 10.0)
    sums = [dict(arrivals.outranking(entry(), 10.0, now).of_tenants())["other"].compute_s for now in (10.0, 10.0 + MEMORY_S)]
    assert sums[1] < 0.4 * sums[0]
    arrivals.record(entry(), 11.0 + FORGOTTEN_S)
    assert dict(arrivals.outranking(entry("third"), 10.0, 11.0 + FORGOTTEN_S).of_tenants()).keys() == {"mine"}
