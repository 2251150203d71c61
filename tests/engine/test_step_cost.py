"""A step's cost is learnt from steps, and the budget follows from it, within its bounds."""

import math

import pytest

from twostep.engine.step_cost import StepBounds, StepCost, StepMeter, prefill_budget

BOUNDS = StepBounds(token_budget=512, min_prefill_tokens=32)
FREE = StepCost(0.0, 0.0, 0.0)
COST = StepCost(base_s=0.005, decode_row_s=0.0005, prefill_token_s=0.00025)


def taught(*steps: tuple[int, int], cost: StepCost = COST, times: int = 20) -> StepMeter:
    """Return a meter that has seen these steps (decodes, prompt tokens), again and again."""
    meter = StepMeter()
    for _ in range(times):
        for num_decodes, num_tokens in steps:
            meter.record(num_decodes, num_tokens, cost.decode_s(num_decodes) + cost.prefill_s(num_tokens))
    return meter


def test_what_decodes_and_prompt_tokens_cost_is_learnt() -> None:
    cost = taught((1, 0), (16, 0), (8, 100), (0, 512)).cost
    assert (cost.base_s, cost.decode_row_s) == pytest.approx((0.005, 0.0005))
    assert cost.prefill_token_s == pytest.approx(0.00025)


def test_decodes_of_one_number_tell_what_that_number_costs() -> None:
    assert taught((8, 0)).cost.decode_s(8) == pytest.approx(0.009)


def test_an_hour_of_decodes_leaves_what_is_known_of_prompts() -> None:
    meter = taught((8, 0), (8, 100))
    for _ in range(100_000):
        meter.record(8, 0, 0.009)
    assert meter.cost.prefill_token_s == pytest.approx(0.00025)


def test_a_slower_machine_is_noticed_within_some_steps() -> None:
    meter = taught((8, 0), (8, 100))
    for _ in range(60):
        meter.record(8, 0, 0.027)
        meter.record(8, 100, 0.027 + 0.075)
    assert meter.cost.decode_s(8) == pytest.approx(0.027, rel=0.1)
    assert meter.cost.prefill_token_s == pytest.approx(0.00075, rel=0.1)


def test_one_step_in_which_the_machine_was_away_says_little() -> None:
    meter = taught((8, 0), (8, 100))
    meter.record(8, 0, 60.0)
    meter.record(8, 100, 60.0)
    assert meter.cost.decode_s(8) < 2 * 0.009
    assert meter.cost.prefill_token_s < 2 * 0.00025


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    assert taught((8, 0), (8, 100), cost=FREE).cost == FREE


def test_nothing_costs_less_than_nothing() -> None:
    meter = StepMeter()
    for num_decodes, duration_s in ((1, 0.02), (16, 0.005), (4, 0.01)):
        meter.record(num_decodes, 0, duration_s)
    meter.record(8, 100, 0.001)
    assert min(meter.cost.base_s, meter.cost.decode_row_s, meter.cost.prefill_token_s) >= 0.0


@pytest.mark.parametrize(
    ("num_decodes", "step_s", "budget"),
    [
        (8, 0.034, 100),  # 9 ms go to decodes
        (8, 10.0, 504),  # the configured budget, decodes included
        (8, 0.001, 32),  # prompts never starve
        (600, 0.080, 32),
        (0, 0.001, 512),  # nobody waits for the step
    ],
)
def test_a_step_keeps_its_time_within_its_bounds(num_decodes: int, step_s: float, budget: int) -> None:
    assert prefill_budget(COST, num_decodes, step_s, BOUNDS) == budget


def test_before_anything_is_measured_the_budget_is_the_configured_one() -> None:
    assert FREE.prefill_tokens_within(0.08, 8) == math.inf
    assert prefill_budget(FREE, 8, 0.08, BOUNDS) == 504
