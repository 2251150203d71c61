"""`twostep explain REQUEST_ID`: why a request was served where it was, and where its time went."""

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from twostep.cli.receipt import bill_table
from twostep.cli.router_client import RouterClient

WHY = {
    "cheapest_pair": "of the pairs between which bytes have moved, the one that was expected to take least",
    "cheaper": "by measured rates a handoff would have cost more than it saves",
    "no_prefill_node": "no prefill node was ready",
    "no_proven_pair": "no prefill node had proved that its bytes arrive",
}
PARTS = ("queue", "prefill", "transfer", "overhead", "room", "decode", "stall")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("explain", help="show why a request was placed where it was, and where its time went")
    parser.add_argument("request", metavar="REQUEST_ID", help="the request's x-request-id, or the id of its reply")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the router that served it (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation. Raises ServingError when the router does not answer, or does not remember the request."""
    with closing(RouterClient(arguments.url)) as client:
        told = client.explain(arguments.request)
    if arguments.json:
        print(json.dumps(told, indent=2))
        return 0
    console = Console(highlight=False)
    for line in explanation_lines(told):
        console.print(line, markup=False, soft_wrap=True)
    if told["bill"]:
        console.print(bill_table(told["bill"]))
    return 0


def explanation_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a person reads above the bill."""
    arrived = datetime.fromtimestamp(told["arrived_at"], UTC).isoformat(sep=" ", timespec="milliseconds")
    yield f"{told['request']}, {told['prompt_tokens']} prompt tokens, arrived {arrived}: {told['outcome']}"
    for number, attempt in enumerate(told["attempts"], start=1):
        yield f"attempt {number}: {_where(attempt)}: {WHY.get(attempt['why'], attempt['why'])}"
        yield from _expected(attempt)
        if attempt["tokens_before"]:
            yield f"  it went on from {attempt['tokens_before']} tokens of earlier attempts"
        if attempt["error"]:
            yield f"  it failed: {attempt['error']}"


def _expected(attempt: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the router expected when it chose, what a decode node alone would have taken, and what came of it."""
    cost = attempt["expected_s"]
    if cost is None:
        return
    alone = attempt["expected_alone_s"] if attempt["prefill"] else None
    parts = ", ".join(f"{part} {cost[part]:.3f}" for part in PARTS if cost[part])
    yield f"  expected: {_times(cost)} ({parts}); {_cached(attempt, 'expected')}"
    if alone:
        yield f"  a decode node alone: {_times(alone)}, {_more(alone['total'] - cost['total'])} than the pair"
    came_s = attempt["first_token_s"]
    if came_s is None:
        return
    against_alone = f", {_more(came_s - alone['ttft'])} than a decode node alone" if alone else ""
    yield (
        f"  what came: the first token after {came_s:.3f} s, {_more(came_s - cost['ttft'])} than expected{against_alone}; "
        f"{_cached(attempt, 'found')}"
    )


def _times(cost: Mapping[str, float]) -> str:
    return f"the first token after {cost['ttft']:.3f} s, in all {cost['total']:.3f} s"


def _cached(attempt: Mapping[str, Any], whose: str) -> str:
    num_cached = attempt[f"{whose}_cached_tokens"]
    cached = f"{'an unknown number of' if num_cached is None else num_cached} tokens cached"
    return f"{cached}, {attempt[f'{whose}_decode_cached_tokens']} on the decode node" if attempt["prefill"] else cached


def _more(seconds: float) -> str:
    return f"{abs(seconds):.3f} s {'more' if seconds >= 0 else 'less'}"


def _where(attempt: Mapping[str, Any]) -> str:
    decode = _node(attempt["decode"], "requests")
    return f"{_node(attempt['prefill'], 'requests')}, then {decode}" if attempt["prefill"] else f"{decode} alone"


def _node(node: Mapping[str, Any], unit: str) -> str:
    return f"{node['node']} ({node['load']} {unit} before it)"
