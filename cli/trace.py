"""`twostep trace NODE`: what nodes did lately, as a file that Perfetto shows."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twostep.cli.node_client import fetch_trace
from twostep.cli.perfetto import Heard, trace_events
from twostep.cli.tls_option import add_tls_option, security_from
from twostep.core.errors import ConfigError
from twostep.proto.security import Security

VIEWER = "https://ui.perfetto.dev"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("trace", help="write what nodes did recently as a trace for Perfetto")
    parser.add_argument(
        "nodes", nargs="+", metavar="NODE", help="gRPC addresses of nodes, host:port, as `twostep up` prints them"
    )
    parser.add_argument(
        "--seconds", type=_positive, metavar="N", help="only the last N seconds (default: all that the nodes keep)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("twostep-trace.json"), metavar="FILE", help="where to write it (%(default)s)"
    )
    add_tls_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the trace. Raises ServingError when a node does not answer, ConfigError when the file cannot be written."""
    heard = asyncio.run(_ask(arguments.nodes, arguments.seconds, security_from(arguments.tls_of)))
    _write(arguments.out, as_json(heard))
    num_steps, num_spans = sum(len(one.trace.steps) for one in heard), sum(len(one.trace.spans) for one in heard)
    told = f"{arguments.out}: {num_steps} steps, {num_spans} phases of requests; open it at {VIEWER}"
    # Whoever writes to /dev/stdout gets nothing but the trace.
    print(told, file=sys.stderr)
    return 0


def as_json(heard: Sequence[Heard]) -> str:
    """Return the trace in Chrome's format."""
    return json.dumps({"traceEvents": trace_events(heard), "displayTimeUnit": "ms"})


async def _ask(addresses: Sequence[str], within_s: float | None, security: Security) -> list[Heard]:
    return await asyncio.gather(*(_hear(address, within_s, security) for address in addresses))


async def _hear(address: str, within_s: float | None, security: Security) -> Heard:
    trace = await fetch_trace(address, within_s, security)
    return Heard(trace, time.monotonic())


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise ConfigError(f"--out: {path} cannot be written: {cause.strerror}") from cause


def _positive(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of seconds above 0")
    return seconds
