"""Tenants that wait get equal room, also where it comes back for one request at a time."""

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules, Timing
from twostep.engine.ranking import Ranking, RankPolicy
from twostep.node.tenant_shares import TenantShares

NUM_TOKENS = {"a": 2, "b": 2, "c": 2, "L": 8}
RANKING = Ranking(100.0, 0.001, RankPolicy(urgent_s=1.0, aging_s=10.0))


def served_one_by_one(waiting: list[str], *, later: dict[int, str] | None = None) -> str:
    """Return whom room for one request at a time went to; `later` ones join when so many have been served."""
    shares, served, joining = TenantShares(), "", later or {}
    while waiting:
        requests = [
            Request(
                RequestId("r"), (1,) * NUM_TOKENS[tenant], SamplingParams(0), StopRules(5), level=ServiceLevel(tenant=tenant)
            )
            for tenant in waiting
        ]
        first, *_ = RANKING.in_turns([(one, Timing(age_s=2.0, remaining_s=600.0)) for one in requests], shares.of({*waiting}))
        shares.take(waiting[first], len(requests[first].tokens))
        served += waiting.pop(first)
        waiting += joining.pop(len(served), "")
    return served


def test_a_tenant_that_came_first_with_many_is_not_served_out_before_others() -> None:
    assert served_one_by_one([*"aaaabbc"]) == "abcabaa"


def test_a_tenant_of_long_prompts_gets_fewer_of_them_in() -> None:
    assert served_one_by_one([*"LLaaaaaaaa"]) == "LaaaaLaaaa"


def test_who_comes_late_is_next_and_no_more_than_that() -> None:
    assert served_one_by_one([*"aaaaaa"], later={3: "bbb"}) == "aaaabab" + "ab"


def test_who_always_has_one_request_waiting_gets_every_second_turn() -> None:
    assert served_one_by_one([*"aaaaab"], later={2: "b", 4: "b", 6: "b"}) == "ababababa"


def test_who_could_not_go_when_its_turn_came_is_next_and_no_more_than_that() -> None:
    shares = TenantShares()
    for _ in range(20):
        shares.of({"held", "b", "c"})
        shares.take("b", 2)
        shares.take("c", 2)
    assert shares.of({"held", "b", "c"}) == {"held": 38, "b": 40, "c": 40}


def test_who_waits_no_more_is_forgotten() -> None:
    shares = TenantShares()
    shares.of({"a", "b"})
    shares.take("a", 5)
    assert shares.of({"b"}) == {"b": 0}
    assert shares.of({"a", "b"}) == {"a": 0, "b": 0}
