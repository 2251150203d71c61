"""`twostep drain NODE`: takes a node out of service without losing a request, or back into it."""

import argparse
import asyncio
import getpass
import os
import time
from typing import Any

from twostep.cli.node_client import Load, cordon, fetch_load
from twostep.cli.tls_option import add_tls_option, security_from
from twostep.proto.security import Security

LOOK_S = 0.5


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("drain", help="take a node out of service: it finishes its requests and gets no more")
    parser.add_argument("node", metavar="NODE", help="the node's gRPC address, host:port")
    parser.add_argument("--reason", help="why: shown wherever the node's state is shown")
    parser.add_argument("--undo", action="store_true", help="put the node back into service")
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="how long to wait until nothing runs there; 0 does not wait"
    )
    add_tls_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Cordon the node and wait until it is idle. Returns 1 when it is not in time, or back in service. Raises ServingError."""
    security = security_from(arguments.tls_of)
    if arguments.undo:
        load = asyncio.run(cordon(arguments.node, "", security))
        print(
            f"{load.node} is back in service" + (f", but not ready: {load.not_ready_reason}" if load.not_ready_reason else "")
        )
        return 0
    reason = arguments.reason or f"drained by {_user()}"
    load = asyncio.run(_drain(arguments.node, reason, security, arguments.timeout))
    print(_say(load))
    return 0 if load.not_ready_reason and (load.is_idle or not arguments.timeout) else 1


def _user() -> str:
    """Return the user's name, or its number where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


async def _drain(address: str, reason: str, security: Security, timeout_s: float) -> Load:
    """Return what the node has left to do: nothing, unless time is up or it is back in service."""
    load = await cordon(address, reason, security)
    give_up_at = time.monotonic() + timeout_s
    while load.not_ready_reason and not load.is_idle and time.monotonic() < give_up_at:
        await asyncio.sleep(LOOK_S)
        load = await fetch_load(address, security)
    return load


def _say(load: Load) -> str:
    if not load.not_ready_reason:
        return f"{load.node} is back in service: somebody has undone this, or the node was started anew"
    if load.is_idle:
        return f"{load.node} is idle and gets no more requests: it can be stopped, or put back by --undo"
    return f"{load.node} gets no more requests, and still has {load.num_requests}, with {load.referenced_blocks} blocks"
