"""The bill's parts add up to the time to the first token."""

import pytest

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.router.bill import Timeline, cached_tokens, make_bill

TIMES = Timeline(arrived=100.0, reserve_sent=100.01, reserved=100.05, first_token=101.0, last_token=103.0)
PREFILL = PrefillBill(
    queue_s=0.1, compute_s=0.4, transfer_s=0.3, exposed_s=0.05, cached_tokens=32, computed_tokens=68, bytes_sent=640
)
DECODE = DecodeBill(
    queue_s=0.02,
    attach_s=0.01,
    first_step_s=0.03,
    decode_s=1.9,
    num_steps=4,
    cached_tokens=0,
    computed_prompt_tokens=0,
    bytes_landed=640,
)


def test_the_parts_of_a_pairs_bill_add_up_to_the_first_token() -> None:
    bill = make_bill(TIMES, PREFILL, DECODE, num_tokens=5, cached=32, attempts=1, prefill_node="p", decode_node="d")
    parts = bill.queue + bill.reserve + bill.prefill + bill.transfer_exposed + bill.attach + bill.other
    assert parts == pytest.approx(bill.ttft) == pytest.approx(1.0)
    assert bill.queue == pytest.approx(0.12)
    assert bill.reserve == pytest.approx(0.02)
    assert bill.prefill == 0.4
    assert (bill.transfer_hidden, bill.transfer_exposed) == (pytest.approx(0.25), 0.05)
    assert bill.first_decode_step == 0.03
    assert bill.per_token == pytest.approx(0.5)
    assert bill.total == pytest.approx(3.0)
    assert (bill.bytes_moved, bill.prefill_computed_tokens, bill.decode_computed_tokens, bill.cached_tokens) == (640, 68, 0, 32)


def test_a_lone_nodes_first_step_is_its_prefill() -> None:
    bill = make_bill(TIMES, None, DECODE, num_tokens=1, cached=0, attempts=1, prefill_node=None, decode_node="d")
    assert (bill.prefill, bill.first_decode_step, bill.per_token) == (0.03, 0.0, 0.0)
    assert bill.queue + bill.reserve + bill.prefill + bill.transfer_exposed + bill.attach + bill.other == pytest.approx(1.0)


def test_durations_are_rounded_to_microseconds_for_the_client() -> None:
    bill = make_bill(TIMES, PREFILL, DECODE, num_tokens=4, cached=0, attempts=2, prefill_node="p", decode_node="d")
    assert bill.as_json()["per_token"] == 0.666667
    assert bill.as_json()["attempts"] == 2


def test_cached_tokens_are_those_that_nobody_computed() -> None:
    assert cached_tokens(PREFILL, 96, 100) == 32
    assert cached_tokens(None, 96, 100) == 96
    assert cached_tokens(None, 96, 50) == 50
