"""The bill's parts add up to the time to the first token."""

from dataclasses import replace

import pytest

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.router.bill import TTFT_PARTS, Intake, Timeline, cached_tokens, make_bill, server_timing

TIMES = Timeline(
    Intake(100.0, tokenize_s=0.004, queue_s=0.001),
    place_s=0.002,
    first_sent=100.01,
    reserve_sent=100.01,
    reserved=100.05,
    first_token=101.0,
    first_written=101.005,
    last_token=103.0,
    ended=103.1,
)
PREFILL = PrefillBill(
    queue_s=0.1,
    compute_s=0.4,
    transfer_s=0.3,
    exposed_s=0.05,
    cached_tokens=32,
    computed_tokens=68,
    bytes_sent=640,
    handover_s=0.05,
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
    parts = sum(getattr(bill, part) for part in TTFT_PARTS)
    assert parts == pytest.approx(bill.ttft) == pytest.approx(1.005)
    assert bill.queue == pytest.approx(0.121)
    assert bill.reserve == pytest.approx(0.02)
    assert bill.prefill == 0.4
    assert (bill.accept, bill.tokenize, bill.place, bill.retries) == (pytest.approx(0.003), 0.004, 0.002, 0.0)
    assert bill.stream == pytest.approx(0.005)
    assert bill.handover == pytest.approx(0.02)
    assert bill.other == pytest.approx(0.37)
    assert bill.last_words == pytest.approx(0.1)
    assert (bill.transfer_hidden, bill.transfer_exposed) == (pytest.approx(0.25), 0.05)
    assert bill.first_decode_step == 0.03
    assert bill.per_token == pytest.approx(0.5)
    assert bill.total == pytest.approx(3.0)
    assert (bill.bytes_moved, bill.prefill_computed_tokens, bill.decode_computed_tokens, bill.cached_tokens) == (640, 68, 0, 32)


def test_a_lone_nodes_first_step_is_its_prefill() -> None:
    bill = make_bill(TIMES, None, DECODE, num_tokens=1, cached=0, attempts=1, prefill_node=None, decode_node="d")
    assert (bill.prefill, bill.first_decode_step, bill.per_token) == (0.03, 0.0, 0.0)
    assert sum(getattr(bill, part) for part in TTFT_PARTS) == pytest.approx(1.005)


def test_earlier_attempts_have_a_name() -> None:
    times = replace(TIMES, first_sent=100.01, reserve_sent=100.3, reserved=100.34)
    bill = make_bill(times, PREFILL, DECODE, num_tokens=5, cached=32, attempts=2, prefill_node="p", decode_node="d")
    assert bill.retries == pytest.approx(0.29)
    assert bill.reserve == pytest.approx(0.02)
    assert sum(getattr(bill, part) for part in TTFT_PARTS) == pytest.approx(1.005)


def test_what_a_later_attempt_took_is_no_part_of_the_time_to_the_first_token() -> None:
    """The answer had begun when its node died; who had brought the first token can tell nobody any more."""
    times = replace(TIMES, reserve_sent=102.0, reserved=102.04)
    bill = make_bill(times, PREFILL, DECODE, num_tokens=5, cached=32, attempts=2, prefill_node="p", decode_node="d")
    assert (bill.queue, bill.reserve, bill.prefill, bill.attach, bill.other) == (0.001, 0.0, 0.0, 0.0, pytest.approx(0.0))
    assert bill.retries == pytest.approx(0.99)
    assert sum(getattr(bill, part) for part in TTFT_PARTS) == pytest.approx(1.005)


def test_nodes_that_claim_more_time_than_has_passed_are_believed_up_to_it() -> None:
    boasting = replace(PREFILL, compute_s=50.0)
    bill = make_bill(TIMES, boasting, DECODE, num_tokens=5, cached=32, attempts=1, prefill_node="p", decode_node="d")
    assert (bill.prefill, bill.transfer_exposed, bill.other) == (pytest.approx(0.85), 0.0, 0.0)
    assert sum(getattr(bill, part) for part in TTFT_PARTS) == pytest.approx(1.005)


def test_a_bill_is_a_server_timing_too() -> None:
    bill = make_bill(TIMES, PREFILL, DECODE, num_tokens=5, cached=32, attempts=1, prefill_node="p", decode_node="d")
    assert server_timing(bill) == (
        "accept;dur=3.000, tokenize;dur=4.000, place;dur=2.000, retries;dur=0.000, queue;dur=121.000, reserve;dur=20.000, "
        "prefill;dur=400.000, transfer-exposed;dur=50.000, handover;dur=20.000, attach;dur=10.000, other;dur=370.000, "
        "stream;dur=5.000, ttft;dur=1005.000, total;dur=3000.000"
    )


def test_an_attempt_begins_anew_and_the_first_is_remembered() -> None:
    times = Timeline(Intake(1.0))
    times.begin_attempt(2.0)
    times.begin_attempt(5.0)
    assert (times.first_sent, times.reserve_sent, times.reserved) == (2.0, 5.0, 5.0)


def test_durations_are_rounded_to_microseconds_for_the_client() -> None:
    bill = make_bill(TIMES, PREFILL, DECODE, num_tokens=4, cached=0, attempts=2, prefill_node="p", decode_node="d")
    assert bill.as_json()["per_token"] == 0.666667
    assert bill.as_json()["attempts"] == 2


def test_cached_tokens_are_those_that_nobody_computed() -> None:
    assert cached_tokens(PREFILL, 96, 100) == 32
    assert cached_tokens(None, 96, 100) == 96
    assert cached_tokens(None, 96, 50) == 50
