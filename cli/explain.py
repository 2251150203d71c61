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
PARTS = ("queue", "prefill", "transfer", "overhead", "room")


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
    """Yield what the router expected when it chose, and what the best decode node alone would have taken."""
    cost, alone = attempt["expected_s"], attempt["expected_alone_s"]
    if cost is None:
        return
    parts = ", ".join(f"{part} {cost[part]:.3f}" for part in PARTS if cost[part])
    yield f"  expected: the first token after {cost['ttft']:.3f} s ({parts}), {attempt['expected_cached_tokens']} tokens cached"
    if alone and attempt["prefill"]:
        yield f"  the best decode node alone: the first token after {alone['ttft']:.3f} s, in all {alone['total']:.3f} s"


def _where(attempt: Mapping[str, Any]) -> str:
    decode = _node(attempt["decode"], "requests")
    return f"{_node(attempt['prefill'], 'requests')}, then {decode}" if attempt["prefill"] else f"{decode} alone"


def _node(node: Mapping[str, Any], unit: str) -> str:
    return f"{node['node']} ({node['load']} {unit} before it)"
