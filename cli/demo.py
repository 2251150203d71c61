"""`twostep demo`: one question to a cluster of its own, the answer as it comes, and the proof of where it came from."""

import argparse
import asyncio
from contextlib import closing
from typing import Any

from rich.console import Console

from twostep.cli.cluster import Cluster
from twostep.cli.cluster_options import add_cluster_options
from twostep.cli.evidence import Evidence, gather_evidence
from twostep.cli.receipt import bill_table
from twostep.cli.router_client import Answer, RouterClient
from twostep.cli.up import with_cluster
from twostep.cli.watch import Watch

QUESTION = "What is the capital of France?"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("demo", help="start a cluster, ask it a question, print the answer and its bill, stop")
    add_cluster_options(parser)
    parser.add_argument("--question", default=QUESTION, help="what to ask (default: %(default)s)")
    parser.set_defaults(run=run, overrides=["router.port=0"])


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 only when an answer came whose KV crossed over NIXL, with no prompt token computed by a decode node."""
    console = Console(highlight=False)

    async def use(cluster: Cluster, watch: Watch) -> int:
        programs = ", ".join(f"{name} is process {pid}" for name, pid in watch.pids().items())
        console.print(programs, style="dim", markup=False, soft_wrap=True)
        answer = await watch.until(asyncio.to_thread(ask, cluster.url, arguments.question, console))
        evidence = await watch.until(gather_evidence(cluster))
        return show(answer, evidence, console)

    return with_cluster(arguments, use)


def ask(url: str, question: str, console: Console) -> Answer:
    """Print the question, and the answer as it comes. Raises ServingError."""
    answer = Answer()
    console.print(f"> {question}", style="bold cyan", markup=False)
    with closing(RouterClient(url)) as client:
        for piece in client.stream([{"role": "user", "content": question}], answer, temperature=0, max_tokens=64, bill=True):
            console.print(piece, end="", markup=False, soft_wrap=True)
    console.print("\n")
    return answer


def show(answer: Answer, evidence: Evidence, console: Console) -> int:
    """Print the bill and what the nodes' own metrics say; return the exit code."""
    if answer.bill:
        console.print(bill_table(answer.bill))
    console.print(f"\n{evidence.sentence()}", soft_wrap=True)
    objections = evidence.objections()
    if not answer.text:
        objections.insert(0, "no answer came")
    if not answer.bill:
        objections.append("no bill came")
    for objection in objections:
        console.print(f"this is not what twostep promises: {objection}", style="red", markup=False)
    return 1 if objections else 0
