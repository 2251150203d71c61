"""Whole plans for given candidates."""

from typing import Any

from twostep.core.ids import RequestId
from twostep.engine.scheduler import Blocks, Candidate, Limits, Run, StepPlan, plan_step
from twostep.engine.tenant_turns import Turns

LIMITS = Limits(block_tokens=32, min_prefill_tokens=8, max_wait_s=2.0, turn_tokens=50)
A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def decode(request: RequestId, arrival: int, *, num_tokens: int = 11, num_slots: int = 64) -> Candidate:
    return Candidate(request, num_tokens - 1, num_tokens, num_slots, rank=(False, 0, 0, 0, arrival))


def prefill(request: RequestId, arrival: int, num_pending: int, *, num_computed: int = 0, **more: Any) -> Candidate:
    num_tokens = num_computed + num_pending
    return Candidate(request, num_computed, num_tokens, num_tokens, **{"rank": (False, 0, 0, 0, arrival), **more})


def plan(*candidates: Candidate, budget: int = 100, num_available: int = 100, num_coming: int = 0, **more: Any) -> StepPlan:
    return plan_step(candidates, budget, LIMITS, Blocks(num_available, num_coming), **more)


def test_nothing_to_run_is_an_empty_plan() -> None:
    assert plan() == StepPlan(())


def test_decodes_run_first_whatever_their_arrival() -> None:
    assert plan(prefill(A, 1, 50), decode(B, 2)).runs == (Run(B, 1, 0), Run(A, 50, 0))


def test_all_decodes_run_whatever_is_left_for_prompts() -> None:
    assert plan(decode(A, 1), decode(B, 2), prefill(C, 3, 500), budget=8).runs == (Run(A, 1, 0), Run(B, 1, 0), Run(C, 8, 0))


def test_prompts_share_the_budget_in_the_order_of_their_ranks() -> None:
    late = prefill(A, 1, 30, rank=(True, 20, 0, 20, 1))
    urgent, dear = prefill(B, 3, 60, rank=(False, 1, 5, 1, 3)), prefill(C, 2, 500, rank=(False, 20, 1, 20, 2))
    assert plan(late, dear, urgent).runs == (Run(B, 60, 0), Run(C, 40, 0))


def test_a_prompt_with_one_token_left_is_a_decode() -> None:
    assert plan(prefill(A, 1, 200), prefill(B, 2, 1, num_computed=64)).runs == (Run(B, 1, 0), Run(A, 100, 0))


def test_a_decode_that_fills_its_blocks_gets_one_more() -> None:
    assert plan(decode(A, 1, num_tokens=64)).runs == (Run(A, 1, 0),)
    assert plan(decode(A, 1, num_tokens=65)).runs == (Run(A, 1, 1),)


# Waiting.


def test_the_prompt_that_has_waited_too_long_gets_its_minimum_before_all_others() -> None:
    late = prefill(A, 1, 500, rank=(True, 20, 0, 20, 1), waited_s=2.1)
    later = prefill(B, 2, 500, rank=(True, 20, 0, 20, 2), waited_s=2.2)
    first = prefill(C, 3, 500, waited_s=2.0)
    assert plan(late, later, first).runs == (Run(C, 92, 0), Run(B, 8, 0))


def test_who_waits_too_long_takes_no_more_than_it_needs_and_what_is_there() -> None:
    short = prefill(A, 1, 3, rank=(True, 20, 0, 20, 1), waited_s=9.0)
    assert plan(short, prefill(B, 2, 500)).runs == (Run(B, 97, 0), Run(A, 3, 0))
    assert plan(prefill(A, 1, 30, waited_s=9.0), prefill(B, 2, 500), budget=8).runs == (Run(A, 8, 0),)


# Tenants.


def test_each_tenant_has_its_turn_and_who_is_in_it_goes_on_in_the_next_step() -> None:
    mine, yours = prefill(A, 1, 500, tenant="mine"), prefill(B, 2, 500, tenant="yours")
    first = plan(mine, yours, budget=70)
    assert first.runs == (Run(A, 50, 0), Run(B, 20, 0))
    assert first.turns == Turns(("yours", "mine"), {"yours": 30})
    second = plan(mine, yours, budget=70, turns=first.turns)
    assert second.runs == (Run(A, 40, 0), Run(B, 30, 0))


def test_within_a_tenant_prompts_go_by_rank() -> None:
    many = [prefill(RequestId(f"m{i}"), i, 20, tenant="many") for i in range(5)]
    runs = plan(*many, prefill(A, 9, 20, tenant="one"), budget=70).runs
    assert {run.request: run.num_tokens for run in runs} == {"m0": 20, "m1": 20, "m2": 10, "a": 20}


# Blocks.


def test_blocks_that_are_missing_are_counted() -> None:
    needy = [decode(A, 1, num_tokens=65), decode(B, 2, num_tokens=65)]
    assert plan(*needy, num_available=0) == StepPlan((), num_lacking=2)
    assert plan(*needy, num_available=1).num_lacking == 1
    assert plan(*needy, num_available=2) == StepPlan((Run(A, 1, 1), Run(B, 1, 1)))


def test_a_run_waits_for_blocks_that_come_back_and_the_others_go_on() -> None:
    needy = decode(A, 1, num_tokens=65)
    assert plan(needy, decode(B, 2), num_available=0, num_coming=1) == StepPlan((Run(B, 1, 0),))
    assert plan(needy, num_available=0, num_coming=1) == StepPlan(())
    assert plan(needy, decode(B, 2, num_tokens=65), num_available=1, num_coming=1) == StepPlan((Run(A, 1, 1),))
    assert plan(needy, decode(B, 2, num_tokens=65), num_available=0, num_coming=1).num_lacking == 1
