from io import StringIO

from rich.console import Console

from twostep.cli.evidence import Counters, Evidence, counters
from twostep.cli.receipt import bill_rows, bill_table

BILL = {
    "accept": 0.001,
    "tokenize": 0.002,
    "place": 0.001,
    "stream": 0.0003,
    "retries": 0.0,
    "handover": 0.0008,
    "last_words": 0.002,
    "queue": 0.001,
    "reserve": 0.002,
    "prefill": 0.1,
    "transfer_hidden": 0.004,
    "transfer_exposed": 0.0005,
    "attach": 0.0001,
    "first_decode_step": 0.0151,
    "per_token": 0.0149,
    "other": 0.003,
    "ttft": 0.1066,
    "total": 0.25,
    "bytes_moved": 737_280,
    "prefill_computed_tokens": 37,
    "decode_computed_tokens": 0,
    "cached_tokens": 0,
    "attempts": 1,
    "prefill_node": "prefill-0",
    "decode_node": "decode-0",
}
GOOD = Evidence(Counters(37, 737_280), Counters(0, 737_280), frozenset({"nixl"}))


def test_the_bill_lists_every_part_in_milliseconds() -> None:
    assert [row[:2] for row in bill_rows(BILL)] == [
        ("accept", "1.0"),
        ("tokenize", "2.0"),
        ("place", "1.0"),
        ("retries", "0.0"),
        ("queue", "1.0"),
        ("reserve", "2.0"),
        ("prefill", "100.0"),
        ("transfer, hidden", "(4.0)"),
        ("transfer, exposed", "0.5"),
        ("handover", "0.8"),
        ("attach", "0.1"),
        ("other", "3.0"),
        ("stream", "0.3"),
        ("first token", "106.6"),
        ("first decode step", "15.1"),
        ("per token", "14.9"),
        ("whole answer", "250.0"),
        ("last words", "2.0"),
    ]


def test_the_bill_names_nodes_tokens_and_bytes() -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(bill_table(BILL))
    text = console.export_text()
    for told in ("landing space on decode-0", "37 tokens computed on prefill-0, 0 cached", "of 737,280 bytes"):
        assert told in text


def test_counters_add_up_over_the_nodes_of_a_pool() -> None:
    page = "\n".join(
        [
            "# TYPE twostep_prompt_tokens_computed_total counter",
            "twostep_prompt_tokens_computed_total 37.0",
            "# TYPE twostep_handoff_bytes_total counter",
            "twostep_handoff_bytes_total 100.0",
            "# TYPE twostep_steps_total counter",
            "twostep_steps_total 5.0",
            "",
        ]
    )
    assert counters([page, page]) == Counters(prompt_tokens_computed=74, handoff_bytes=200)


def test_a_pool_that_counted_nothing_counts_zero() -> None:
    assert counters(["", ""]) == Counters(0, 0)


def test_good_evidence_meets_no_objection() -> None:
    assert GOOD.objections() == []
    assert GOOD.sentence() == (
        "prefill computed 37 prompt tokens, decode computed 0; 737,280 bytes of KV crossed between them over nixl"
    )


def test_every_broken_promise_is_named() -> None:
    bad = Evidence(Counters(0, 0), Counters(37, 0), frozenset({"local"}))
    assert bad.objections() == [
        "prefill computed no prompt token",
        "decode computed 37 prompt tokens",
        "no bytes landed on decode",
        "the KV did not cross over nixl",
    ]
