"""`twostep up`: a whole cluster on this machine, as processes, until Ctrl-C."""

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from twostep.cli.child import ChildEnded, writable
from twostep.cli.cluster import Cluster, ClusterPlan, running
from twostep.cli.cluster_config import plan_cluster
from twostep.cli.cluster_options import add_cluster_options
from twostep.cli.entry import INTERRUPTED
from twostep.cli.watch import Stopped, Watch
from twostep.core.errors import ConfigError, ServingError
from twostep.core.program import SIGNALLED

Use = Callable[[Cluster, Watch], Awaitable[int]]
"""What to do with the cluster once it can serve; returns the exit code."""
EXPLAINED = frozenset({0, ConfigError.exit_code, INTERRUPTED, SIGNALLED + signal.SIGTERM})
"""Ends of which logs have nothing to tell: somebody wanted them, or what is wrong with the configuration was told in full."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("up", help="start a router, prefill nodes and decode nodes on this machine")
    add_cluster_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns 0 after a clean stop, else as `with_cluster`."""
    return with_cluster(arguments, _serve)


def with_cluster(arguments: argparse.Namespace, use: Use) -> int:
    """Start the cluster that `arguments` describe, `use` it, and stop it. Raises ConfigError before anything is started.

    Returns what `use` returns, 1 or a child's own code when a child has ended, 130 when interrupted before it could serve, and
    128 + the number of a second signal, which ends everything at once.
    """
    folder = Path(tempfile.gettempdir()) / f"twostep-{secrets.token_hex(4)}"
    plan = plan_cluster(arguments.config, arguments.overrides, folder, len(os.sched_getaffinity(0)))
    with writable(folder.parent):
        folder.mkdir(mode=0o700)
    code = asyncio.run(_run(plan, folder, use))
    # Where something went wrong the logs stay.
    if code in EXPLAINED:
        shutil.rmtree(folder)
    return code


async def _run(plan: ClusterPlan, folder: Path, use: Use) -> int:
    watch = Watch()
    watch.listen_to_signals()
    try:
        code = await _use_when_ready(plan, folder, watch, use)
    except Stopped:
        code = INTERRUPTED
    except ChildEnded as ended:
        # It has been told; how the others ended after it is a consequence.
        return ended.exit_code
    except ServingError as error:
        return _complain(error, 1)
    except ConfigError as error:
        return _complain(error, error.exit_code)
    if watch.cut_short_by:
        return SIGNALLED + watch.cut_short_by
    for farewell in watch.farewells:
        code = _complain(farewell, farewell.exit_code)
    return code


def _complain(error: Exception, code: int) -> int:
    print(f"twostep: {error}", file=sys.stderr)
    return code


async def _use_when_ready(plan: ClusterPlan, folder: Path, watch: Watch, use: Use) -> int:
    async with AsyncExitStack() as stack:
        try:
            with Console(stderr=True).status("starting") as status:

                def report(reason: str) -> None:
                    status.update(Text(f"starting: {reason}"))

                cluster = await stack.enter_async_context(running(plan, folder, watch, report))
            return await use(cluster, watch)
        except ChildEnded as ended:
            # At once: to stop the others may take a while.
            _complain(ended, ended.exit_code)
            raise


async def _serve(cluster: Cluster, watch: Watch) -> int:
    nodes = ", ".join(f"{node.name} {node.grpc}" for node in (*cluster.prefill, *cluster.decode))
    print(f"twostep serves at {cluster.url} (gRPC {cluster.grpc}, {nodes}; Ctrl-C stops)", flush=True)
    with suppress(Stopped):
        await watch.until(asyncio.Event().wait())
    return 0
