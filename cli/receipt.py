"""The bill of one request, as a table that a person reads from top to bottom."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

Row = tuple[str, str, str]
"""What, how long or how much, and a remark."""


def bill_table(bill: Mapping[str, Any]) -> Table:
    """Return the table for the `bill` that the router sends on demand; durations in it are seconds."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("where the time went")
    table.add_column("ms", justify="right")
    table.add_column("")
    for row in bill_rows(bill):
        table.add_row(*row)
    return table


def bill_rows(bill: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows: the parts of the time to first token, their sum, then what comes after it."""
    computed, cached = bill["prefill_computed_tokens"], bill["cached_tokens"]
    yield "accept", _ms(bill["accept"]), "the router: reading, checking"
    yield "tokenize", _ms(bill["tokenize"]), "the router: template, tokens"
    yield "place", _ms(bill["place"]), "the router: choice of nodes"
    yield "retries", _ms(bill["retries"]), f"{bill['attempts'] - 1} earlier attempts"
    yield "queue", _ms(bill["queue"]), "waiting for nodes, and on both"
    yield "reserve", _ms(bill["reserve"]), f"blocks and landing space on {bill['decode_node']}"
    yield "prefill", _ms(bill["prefill"]), f"{computed} tokens computed on {bill['prefill_node']}, {cached} cached"
    yield "transfer, hidden", f"({_ms(bill['transfer_hidden'])})", "while later layers were computed"
    yield "transfer, exposed", _ms(bill["transfer_exposed"]), f"of {_size(bill['bytes_moved'])}"
    yield "handover", _ms(bill["handover"]), "the prefill node's last word on its way"
    yield "attach", _ms(bill["attach"]), "last copy, digests compared"
    yield "other", _ms(bill["other"]), "messages between the router and the nodes"
    yield "stream", _ms(bill["stream"]), "from the first token to its text in the client's connection"
    yield "first token", _ms(bill["ttft"]), "the sum of the above"
    yield "first decode step", _ms(bill["first_decode_step"]), ""
    yield "per token", _ms(bill["per_token"]), "after the first"
    yield "whole answer", _ms(bill["total"]), ""
    yield "last words", _ms(bill["last_words"]), "the nodes' bills, after the last token"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes"
