"""Starts the nodes, then the router, and knows when they can serve; stops the router first, so that nothing is cut short."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx

from twostep.cli.child import Program
from twostep.cli.watch import Watch

POLL_S = 0.05
NODE_STOP_S = 15.0
ROUTER_STOP_MARGIN_S = 5.0

Role = Literal["prefill", "decode"]
Report = Callable[[str], None]
"""Is told what the command waits for."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Which programs to start. The router's configuration still lacks the nodes' addresses."""

    nodes: tuple[Program, ...]
    address_files: Mapping[Role, tuple[Path, ...]]
    """Where the nodes tell their addresses as soon as they listen."""
    router: Program
    router_address_file: Path
    router_drain_s: float


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node that was started listens, as `host:port`."""

    name: str
    grpc: str
    metrics: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that can serve: bytes really moved between at least one prefill and one decode node."""

    url: str
    grpc: str
    """Where the router takes gRPC calls, as `host:port`."""
    prefill: tuple[NodeAddress, ...]
    decode: tuple[NodeAddress, ...]


@asynccontextmanager
async def running(plan: ClusterPlan, folder: Path, watch: Watch, report: Report) -> AsyncIterator[Cluster]:
    """Run the cluster for the duration of the block. Raises ChildEnded or Stopped, also while it starts."""
    async with watch.started(plan.nodes, folder, stop_s=NODE_STOP_S):
        report("nodes")
        prefill, decode = [await watch.until(_node_addresses(plan, role)) for role in ("prefill", "decode")]
        router = _knowing(plan.router, prefill, decode)
        async with watch.started([router], folder, stop_s=plan.router_drain_s + ROUTER_STOP_MARGIN_S):
            report("router")
            address = await watch.until(read_when_written(plan.router_address_file))
            url = f"http://{address['http']}"
            await watch.until(_ready(url, report))
            yield Cluster(url, address["grpc"], prefill, decode)


def _knowing(router: Program, prefill: Sequence[NodeAddress], decode: Sequence[NodeAddress]) -> Program:
    addresses = {"prefill": [node.grpc for node in prefill], "decode": [node.grpc for node in decode]}
    return replace(router, config={**router.config, **addresses})


async def _node_addresses(plan: ClusterPlan, role: Role) -> tuple[NodeAddress, ...]:
    told = [await read_when_written(path) for path in plan.address_files[role]]
    return tuple(NodeAddress(address["node"], address["grpc"], address["metrics"]) for address in told)


async def read_when_written(path: Path) -> Mapping[str, Any]:
    """Return what a program writes to `path`, all at once, as soon as it listens."""
    while True:
        if told := _read_json(path):
            return told
        await asyncio.sleep(POLL_S)


def _read_json(path: Path) -> Mapping[str, Any]:
    told: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return told


async def _ready(url: str, report: Report) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        while reason := await _not_ready_reason(client):
            report(reason)
            await asyncio.sleep(POLL_S)


async def _not_ready_reason(client: httpx.AsyncClient) -> str:
    """Return why the router cannot serve yet, or nothing when it can."""
    try:
        reply = await client.get("/ready")
    except httpx.TransportError as error:
        return f"the router does not answer: {error}"
    return "" if reply.status_code == httpx.codes.OK else _what_is_missing(reply.json())


def _what_is_missing(report: Mapping[str, Any]) -> str:
    waiting = [f"{node['node'] or node['address']}: {node['reason']}" for node in report["nodes"] if not node["ready"]]
    return ", ".join(waiting) or "no pair of nodes has exchanged bytes yet"
