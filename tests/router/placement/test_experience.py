"""What a router learns from the bills of its requests."""

from dataclasses import replace

import pytest

from twostep.router.bill import Bill, Intake, Timeline, make_bill
from twostep.router.placement.experience import UNMEASURED_OUTPUT_TOKENS, Experience


def bill(prefill_node: str | None = "p", *, attempts: int = 1, cached_tokens: int = 0) -> Bill:
    made = make_bill(
        Timeline(Intake(0.0), first_token=1.0, last_token=2.0),
        None,
        None,
        num_tokens=10,
        cached=cached_tokens,
        attempts=attempts,
        prefill_node=prefill_node,
        decode_node="d",
    )
    return replace(made, reserve=0.01, handover=0.002, attach=0.001, other=0.003)


def test_nothing_is_known_at_first() -> None:
    seen = Experience()
    assert (seen.output_tokens, seen.uncached_share) == (UNMEASURED_OUTPUT_TOKENS, 1.0)
    assert (seen.pair_overhead_s, seen.alone_overhead_s) == (0.0, 0.0)


def test_pairs_and_nodes_alone_are_measured_apart() -> None:
    seen = Experience()
    seen.learn(bill(), 100, 20)
    assert (seen.pair_overhead_s, seen.alone_overhead_s) == (pytest.approx(0.016), 0.0)
    seen.learn(replace(bill(None), reserve=0.1), 100, 20)
    assert (seen.pair_overhead_s, seen.alone_overhead_s) == (pytest.approx(0.016), pytest.approx(0.106))


def test_a_request_of_several_attempts_says_nothing_about_one() -> None:
    seen = Experience()
    seen.learn(bill(attempts=2), 100, 30)
    assert (seen.pair_overhead_s, seen.output_tokens) == (0.0, 30.0)


def test_long_prompts_count_more_in_what_is_found_in_caches() -> None:
    seen = Experience()
    seen.learn(bill(cached_tokens=900), 1000, 1)
    seen.learn(bill(cached_tokens=0), 100, 1)
    assert seen.uncached_share == pytest.approx((0.9 * 1000 * 0.1 + 100) / (0.9 * 1000 + 100))
