"""Nodes that come and go as pods do: started, named when they are there, told to go, un-named when they are gone."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from twostep.tests.chaos.plan import ROLES, ROUTER, Settings
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import DEADLINE_S, Stream
from twostep.tests.chaos.town import BASELINE_S, client_of, held_at, ready_report
from twostep.tests.chaos.waiting import until

PRE_STOP_S = 0.5
"""How long a pod goes on after it is named as leaving: until every router has looked at the file."""


@dataclass(slots=True)
class Pods:
    """What stands in for a cluster: programs, and the file in which routers see which nodes there are."""

    folder: Path
    nodes: dict[str, Program] = field(default_factory=dict)
    routers: list[Program] = field(default_factory=list)
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    started: list[Program] = field(default_factory=list)
    leaving: set[str] = field(default_factory=set)
    num_started: int = 0

    def name_nodes(self) -> None:
        listed: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
        for name, node in self.nodes.items():
            member = {"address": node.addresses["grpc"], "id": name, "leaving": name in self.leaving}
            listed["prefill" if name.startswith("p") else "decode"].append(member)
        partial = self.folder / "nodes.partial"
        partial.write_text(json.dumps(listed))
        partial.replace(self.folder / "nodes.json")

    async def start(self, role: str, settings: Settings | None = None) -> str:
        """Start a node, name it, and return its name."""
        name = f"{role[0]}{self.num_started}"
        self.num_started += 1
        given = {**ROLES[role], "node_id": name, "timers.drain_s": 20, **(settings or {})}
        node = Program(name, f"twostep.{role}_node", self.folder, given)
        self.started.append(node)
        await node.restart()
        self.nodes[node.name] = node
        self.name_nodes()
        return node.name

    async def terminate(self, name: str) -> None:
        """End a node as Kubernetes ends a pod, and return when it is gone. It has to end well."""
        node = self.nodes[name]
        self.leaving.add(name)
        self.name_nodes()
        await asyncio.sleep(PRE_STOP_S)
        node.ask_to_stop()
        assert await node.ended(within_s=60) == 0
        self.forget(name)

    async def kill(self, name: str) -> None:
        await self.nodes[name].kill()
        self.forget(name)

    def forget(self, name: str) -> None:
        del self.nodes[name]
        self.leaving.discard(name)
        self.name_nodes()

    async def start_router(self) -> int:
        """Start a router and return its number once it can serve."""
        number = len(self.routers)
        watch = {"file": {"path": str(self.folder / "nodes.json"), "poll_s": 0.05}}
        settings = {**ROUTER, "router_id": f"r{number}", "drain_s": 20, "discovery": json.dumps(watch)}
        router = Program(f"r{number}", "twostep.router", self.folder, settings)
        self.started.append(router)
        await router.restart()
        self.routers.append(router)
        self.clients.append(client_of(router))
        await self.proven(1)
        return number

    async def proven(self, num_pairs: int) -> None:
        """Wait until every router that runs knows of at least so many pairs between which bytes have moved."""

        async def missing() -> str:
            running = [client for router, client in zip(self.routers, self.clients, strict=True) if router.is_running]
            reports = [await ready_report(client) for client in running]
            return str(reports) if any(report.get("proven_pairs", 0) < num_pairs for report in reports) else ""  # type: ignore[operator]

        await until(missing, within_s=60)

    async def at_baseline(self) -> None:
        for node in self.nodes.values():
            await until(lambda node=node: held_at(node), within_s=BASELINE_S)  # type: ignore[misc]

    @asynccontextmanager
    async def under_load(
        self, *, num_clients: int = 4, routers: Mapping[str, int] | None = None
    ) -> AsyncIterator[list[Stream]]:
        """Let clients ask one question after the other for as long as the block lasts, and hear all answers to the end."""
        streams: list[Stream] = []
        is_over = False
        to = routers or {"now": 0}

        async def keep_asking(client: int) -> None:
            while not is_over:
                stream = Stream(Question(len(streams), num_prompt=80, max_tokens=40, salt=f"{client}-{len(streams)}"))
                streams.append(stream)
                await stream.listen(self.clients[to["now"]])

        async with asyncio.TaskGroup() as clients:
            for client in range(num_clients):
                clients.create_task(keep_asking(client))
            await self.answered(streams, num_clients)
            yield streams
            await self.answered(streams, len(streams) + num_clients)
            is_over = True

    async def answered(self, streams: list[Stream], num: int) -> None:
        """Wait until so many answers have been heard to the end."""

        async def missing() -> str:
            return "" if sum(stream.is_over for stream in streams) >= num else f"{num} answers"

        await until(missing, within_s=DEADLINE_S)


@asynccontextmanager
async def pods(folder: Path, *, num_prefill: int = 1, num_decode: int = 1) -> AsyncIterator[Pods]:
    """Start nodes and one router, and wait until all pairs are proven."""
    here = Pods(folder)
    try:
        for _ in range(num_prefill):
            await here.start("prefill")
        for _ in range(num_decode):
            await here.start("decode")
        await here.start_router()
        await here.proven(num_prefill * num_decode)
        yield here
    finally:
        for client in here.clients:
            await client.aclose()
        for program in here.started:
            program.end()
