"""What `twostep explain` says of a request."""

import json
from typing import Any

import httpx
import pytest

from twostep.cli.explain import explanation_lines
from twostep.cli.router_client import RouterClient
from twostep.core.errors import UnknownRequest

TOLD: dict[str, Any] = {
    "request": "req-1",
    "client_id": "mine",
    "arrived_at": 0.5,
    "prompt_tokens": 40,
    "outcome": "stop",
    "attempts": [
        {
            "prefill": {"node": "p0@1", "load": 512},
            "decode": {"node": "d0@1", "load": 3},
            "why": "cheapest_pair",
            "expected_s": {
                "queue": 0.5,
                "prefill": 1.0,
                "transfer": 0.25,
                "overhead": 0.0,
                "room": 0.0,
                "decode": 2.5,
                "stall": 0.0,
                "ttft": 1.75,
                "total": 4.25,
            },
            "expected_alone_s": {"ttft": 2.0, "total": 9.5},
            "expected_cached_tokens": 32,
            "expected_decode_cached_tokens": 16,
            "first_token_s": None,
            "found_cached_tokens": None,
            "found_decode_cached_tokens": None,
            "tokens_before": 0,
            "error": "p0@1 is lost",
        },
        {
            "prefill": None,
            "decode": {"node": "d1@1", "load": 0},
            "why": "no_prefill_node",
            "expected_s": None,
            "expected_alone_s": None,
            "expected_cached_tokens": 0,
            "expected_decode_cached_tokens": 0,
            "first_token_s": 0.5,
            "found_cached_tokens": 8,
            "found_decode_cached_tokens": 8,
            "tokens_before": 7,
            "error": "",
        },
    ],
    "bill": None,
}


def test_every_attempt_is_told_with_its_nodes_its_reason_and_its_end() -> None:
    assert list(explanation_lines(TOLD)) == [
        "req-1, 40 prompt tokens, arrived 1970-01-01 00:00:00.500+00:00: stop",
        "attempt 1: p0@1 (512 requests before it), then d0@1 (3 requests before it): "
        "of the pairs between which bytes have moved, the one that was expected to take least",
        "  expected: the first token after 1.750 s, in all 4.250 s (queue 0.500, prefill 1.000, transfer 0.250, decode 2.500); "
        "32 tokens cached, 16 on the decode node",
        "  a decode node alone: the first token after 2.000 s, in all 9.500 s, 5.250 s more than the pair",
        "  it failed: p0@1 is lost",
        "attempt 2: d1@1 (0 requests before it) alone: no prefill node was ready",
        "  it went on from 7 tokens of earlier attempts",
    ]


def test_what_came_of_an_attempt_is_held_against_what_was_expected_of_it_and_of_a_decode_node_alone() -> None:
    came = {"error": "", "first_token_s": 2.5, "found_cached_tokens": 0, "found_decode_cached_tokens": 16}
    assert list(explanation_lines({**TOLD, "attempts": [{**TOLD["attempts"][0], **came}]}))[-1] == (
        "  what came: the first token after 2.500 s, 0.750 s more than expected, 0.500 s more than a decode node alone; "
        "0 tokens cached, 16 on the decode node"
    )


def test_what_a_prefill_node_has_not_told_is_not_taken_from_the_decode_node() -> None:
    came = {"error": "", "first_token_s": 2.5, "found_cached_tokens": None, "found_decode_cached_tokens": 16}
    *_, line = explanation_lines({**TOLD, "attempts": [{**TOLD["attempts"][0], **came}]})
    assert line.endswith("; an unknown number of tokens cached, 16 on the decode node")


def test_the_router_is_asked_by_the_name_that_was_given() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, content=json.dumps(TOLD))

    assert RouterClient("http://router", transport=httpx.MockTransport(handler)).explain("a/b") == TOLD
    assert asked == ["/requests/a%2Fb"]


def test_a_request_that_nobody_remembers_is_an_error() -> None:
    body = {"error": {"code": "request_not_found", "message": "no request 'x'", "param": None}}
    client = RouterClient("http://router", transport=httpx.MockTransport(lambda _: httpx.Response(404, json=body)))
    with pytest.raises(UnknownRequest, match="no request 'x'"):
        client.explain("x")
