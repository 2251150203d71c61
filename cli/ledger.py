"""`twostep ledger NODE`: who holds which memory of a node, and since when."""

import argparse
import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from twostep.cli.node_client import Holding, Ledger, fetch_ledger
from twostep.cli.tls_option import add_tls_option, security_from


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("ledger", help="list who holds a node's memory")
    parser.add_argument("node", metavar="NODE", help="the node's gRPC address, host:port, as `twostep up` prints it")
    parser.add_argument("--json", action="store_true", help="print everything, block numbers included, as one JSON object")
    add_tls_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger. Returns 1 when a block has no owner. Raises ServingError when the node does not answer."""
    ledger = asyncio.run(fetch_ledger(arguments.node, security_from(arguments.tls_of)))
    if arguments.json:
        print(as_json(ledger))
    else:
        console = Console(highlight=False)
        console.print(summary(ledger), markup=False, soft_wrap=True)
        if ledger.holdings:
            console.print(holdings_table(ledger.holdings))
    return 1 if ledger.orphaned_blocks else 0


def summary(ledger: Ledger) -> str:
    """Say how the blocks add up."""
    landing = f"; {ledger.landing_free_bytes:,} of {ledger.landing_bytes:,} landing bytes free"
    return (
        f"{ledger.node}: {ledger.total_blocks} blocks = {ledger.free_blocks} free + {ledger.cached_blocks} cached"
        f" + {ledger.referenced_blocks} referenced, {ledger.orphaned_blocks} without an owner"
        f"{landing if ledger.landing_bytes else ''}"
    )


def holdings_table(holdings: Sequence[Holding]) -> Table:
    """Return one row per owner, the oldest first."""
    table = Table("owner", "attempt", "phase", "age", "blocks", "memory", "peer", box=None)
    for held in sorted(holdings, key=lambda held: -held.age_s):
        attempt, age = str(held.attempt or ""), "unknown" if math.isinf(held.age_s) else f"{held.age_s:.1f} s"
        table.add_row(held.owner, attempt, held.phase, age, str(len(held.blocks) or ""), _memory(held), _peer(held))
    return table


def as_json(ledger: Ledger) -> str:
    """Return the ledger as JSON; an age that nobody knows is null."""
    told = asdict(ledger)
    for held in told["holdings"]:
        held["age_s"] = None if math.isinf(held["age_s"]) else held["age_s"]
    return json.dumps(told, indent=2)


def _memory(held: Holding) -> str:
    if held.landing_bytes:
        rests = f", rests {held.cooldown_left_s:.1f} s more" if held.cooldown_left_s else ""
        return f"{held.landing_bytes:,} bytes at {held.landing_offset:,}, generation {held.generation}{rests}"
    return f"{held.writes_in_flight} writes in flight" if held.writes_in_flight else ""


def _peer(held: Holding) -> str:
    return f"to {held.destination}" if held.destination else f"from {held.source}" if held.source else ""
