"""Whole plans for given candidates."""

from twostep.core.ids import RequestId
from twostep.engine.scheduler import Candidate, Limits, Run, StepPlan, plan_step

LIMITS = Limits(block_tokens=32, token_budget=100, min_prefill_tokens=32)
A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def decode(request: RequestId, arrival: int, *, num_tokens: int = 11, num_slots: int = 64) -> Candidate:
    return Candidate(request, arrival, num_tokens - 1, num_tokens, num_slots)


def prefill(request: RequestId, arrival: int, num_pending: int, *, num_computed: int = 0) -> Candidate:
    num_tokens = num_computed + num_pending
    return Candidate(request, arrival, num_computed, num_tokens, num_tokens)


def plan(*candidates: Candidate, limits: Limits = LIMITS, num_available: int = 100, num_coming: int = 0) -> StepPlan:
    return plan_step(candidates, limits, num_available=num_available, num_coming=num_coming)


def test_nothing_to_run_is_an_empty_plan() -> None:
    assert plan() == StepPlan(())


def test_decodes_run_first_whatever_their_arrival() -> None:
    assert plan(prefill(A, 1, 50), decode(B, 2)).runs == (Run(B, 1, 0), Run(A, 50, 0))


def test_a_long_prompt_gets_what_the_decodes_leave_of_the_budget() -> None:
    assert plan(decode(A, 1), decode(B, 2), prefill(C, 3, 500)).runs == (Run(A, 1, 0), Run(B, 1, 0), Run(C, 98, 0))


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    assert plan(prefill(B, 2, 500), prefill(A, 1, 30), prefill(C, 3, 9)).runs == (Run(A, 30, 0), Run(B, 70, 0))


def test_no_prompt_starves_when_decodes_use_up_the_budget() -> None:
    limits = Limits(block_tokens=32, token_budget=2, min_prefill_tokens=8)
    assert plan(decode(A, 1), decode(B, 2), prefill(C, 3, 500), limits=limits).runs[-1] == Run(C, 8, 0)


def test_all_decodes_run_even_beyond_the_budget() -> None:
    limits = Limits(block_tokens=32, token_budget=1, min_prefill_tokens=1)
    assert plan(decode(A, 1), decode(B, 2), limits=limits).runs == (Run(A, 1, 0), Run(B, 1, 0))


def test_a_prompt_with_one_token_left_is_a_decode() -> None:
    assert plan(prefill(A, 1, 200), prefill(B, 2, 1, num_computed=64)).runs == (Run(B, 1, 0), Run(A, 99, 0))


def test_a_decode_that_fills_its_blocks_gets_one_more() -> None:
    assert plan(decode(A, 1, num_tokens=64)).runs == (Run(A, 1, 0),)
    assert plan(decode(A, 1, num_tokens=65)).runs == (Run(A, 1, 1),)


def test_the_youngest_is_preempted_when_decodes_lack_blocks() -> None:
    needy = decode(A, 1, num_tokens=65)
    assert plan(needy, decode(B, 2), num_available=0) == StepPlan((), preempt=B)
    assert plan(needy, decode(B, 2), prefill(C, 3, 64), num_available=0) == StepPlan((), preempt=C)


def test_the_last_one_standing_preempts_itself() -> None:
    assert plan(decode(A, 1, num_tokens=65), num_available=0) == StepPlan((), preempt=A)


def test_nobody_is_preempted_while_blocks_suffice() -> None:
    runs = plan(decode(A, 1, num_tokens=65), decode(B, 2, num_tokens=65), num_available=2).runs
    assert runs == (Run(A, 1, 1), Run(B, 1, 1))


def test_a_run_waits_for_blocks_that_come_back_and_the_others_go_on() -> None:
    needy = decode(A, 1, num_tokens=65)
    assert plan(needy, decode(B, 2), num_available=0, num_coming=1) == StepPlan((Run(B, 1, 0),))
    assert plan(needy, num_available=0, num_coming=1) == StepPlan(())
    assert plan(needy, decode(B, 2, num_tokens=65), num_available=1, num_coming=1) == StepPlan((Run(A, 1, 1),))


def test_the_youngest_is_preempted_when_what_comes_back_is_not_enough() -> None:
    needy = [decode(A, 1, num_tokens=65), decode(B, 2, num_tokens=65)]
    assert plan(*needy, num_available=0, num_coming=1) == StepPlan((), preempt=B)
