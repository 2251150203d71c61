"""`twostep ledger NODE`: who holds which memory of a node, and since when."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from twostep.cli.node_client import Holding, Ledger, fetch_ledger
from twostep.cli.tls_option import add_tls_option, security_from


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("ledger", help="list who holds the memory of a node")
    parser.add_argument("node", metavar="NODE", help="the node's gRPC address, host:port, as `twostep up` prints it")
    add_tls_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger. Returns 1 when a block has no owner. Raises ServingError when the node does not answer."""
    ledger = asyncio.run(fetch_ledger(arguments.node, security_from(arguments.tls_of)))
    console = Console(highlight=False)
    console.print(summary(ledger), markup=False, soft_wrap=True)
    if ledger.holdings:
        console.print(holdings_table(ledger.holdings))
    return 1 if ledger.orphaned_blocks else 0


def summary(ledger: Ledger) -> str:
    """Say how the blocks add up."""
    return (
        f"{ledger.node}: {ledger.total_blocks} blocks = {ledger.free_blocks} free + {ledger.cached_blocks} cached"
        f" + {ledger.referenced_blocks} referenced, {ledger.orphaned_blocks} without an owner;"
        f" {ledger.landing_free_bytes:,} of {ledger.landing_bytes:,} landing bytes free"
    )


def holdings_table(holdings: Sequence[Holding]) -> Table:
    """Return one row per owner, the oldest first."""
    table = Table("owner", "phase", "age", "blocks", "landing", box=None)
    for held in sorted(holdings, key=lambda held: -held.age_s):
        landing = f"{held.landing_bytes:,} bytes, generation {held.generation}" if held.landing_bytes else ""
        table.add_row(held.owner, held.phase, f"{held.age_s:.1f} s", str(held.num_blocks), landing)
    return table
