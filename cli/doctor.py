"""`twostep doctor`: looks at this machine, a program's configuration, or a running cluster, and says what to do."""

import argparse
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from twostep.cli.checkup.cluster import check_cluster
from twostep.cli.checkup.finding import Finding
from twostep.cli.checkup.machine import check_machine
from twostep.cli.checkup.program import check_program
from twostep.cli.tls_option import IN_A_POD
from twostep.core.config import read_values
from twostep.kv_transfer.wires import WIRES

AGAIN_S = 2.0
TIMEOUT_S = 120.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="find out what is wrong and what to do about it")
    parser.add_argument("--url", help="check the cluster of this router instead of this machine")
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="CA certificates (PEM) to check the router's certificate against"
    )
    parser.add_argument("--insecure", action="store_true", help="do not check the router's certificate")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="S", help="keep checking the cluster for up to S seconds until it is healthy"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=IN_A_POD if IN_A_POD.exists() else None,
        help="check the model, certificates and transport of this configuration file",
    )
    parser.add_argument("--transport", choices=sorted(WIRES), help="the transport to check (default: the file's, or nixl)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found. Returns 1 when something is wrong. Raises ConfigError when a file cannot be read."""
    if arguments.url:
        findings = _of_cluster(arguments)
    else:
        findings = [*(check_program(arguments.config) if arguments.config else ()), *check_machine(_transport(arguments))]
    console = Console(highlight=False)
    for finding in findings:
        console.print(_line(finding), soft_wrap=True)
    return 0 if all(finding.is_well for finding in findings) else 1


def _of_cluster(arguments: argparse.Namespace) -> list[Finding]:
    with httpx.Client(base_url=arguments.url, verify=_verification(arguments), timeout=TIMEOUT_S, trust_env=False) as http:
        return until_well(lambda: check_cluster(http), wait_s=arguments.wait)


def _transport(arguments: argparse.Namespace) -> str:
    configured = read_values(arguments.config).get("transport") if arguments.config else None
    told = str(arguments.transport or configured)
    return told if told in WIRES else "nixl"


def until_well(look: Callable[[], Iterator[Finding]], *, wait_s: float) -> list[Finding]:
    """Look again until all is well, or `wait_s` have passed; return what was found last."""
    give_up_at = time.monotonic() + wait_s
    while True:
        findings = list(look())
        if all(finding.is_well for finding in findings) or time.monotonic() + AGAIN_S > give_up_at:
            return findings
        time.sleep(AGAIN_S)


def _verification(arguments: argparse.Namespace) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=str(arguments.ca)) if arguments.ca else not arguments.insecure


def _line(finding: Finding) -> Text:
    mark = Text("ok    ", "green") if finding.is_well else Text("wrong ", "bold red")
    line = mark.append(f"{finding.subject}: {finding.says}", "default")
    return line if finding.is_well else line.append(f"\n      {finding.advice}", "yellow")
