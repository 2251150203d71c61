"""The Serve deployment of a pool: each replica is one node, a program beside it, and answers for its health and its load."""

import asyncio
import time
from http import HTTPStatus

import httpx

from twostep.autoscaler.metrics_text import read_node
from twostep.autoscaler.seen import NodeCounters
from twostep.core.errors import NodeUnavailable
from twostep.deploy.ray.hosted import HostedProgram
from twostep.deploy.ray.load import load_of
from twostep.deploy.ray.plan import NodePlan
from twostep.deploy.ray.replica import machine_address, replica_name, require_serve_agrees, with_model_folder
from twostep.deploy.ray.scaling import LOAD

PAGE_S = 5.0
"""How long a node may take to answer about itself."""
LOOK_S = 0.1


class NodeReplica:
    """Serve starts one for each node; it counts as started once its node can serve."""

    async def __init__(self, plan: NodePlan) -> None:  # type: ignore[misc] # Serve awaits it
        require_serve_agrees(plan.role, drain_s=plan.drain_s, stop_s=plan.stop_s)
        self._plan = plan
        self._host = machine_address()
        name = replica_name(plan.role)
        values = with_model_folder({"host": self._host, **plan.values, "node_id": name})
        self._program = await HostedProgram.start(name, f"twostep.{plan.role}_node", values)
        self._http = httpx.AsyncClient(base_url=f"http://{self._program.told['metrics']}", timeout=PAGE_S, trust_env=False)
        self._counted: tuple[float, NodeCounters] | None = None
        try:
            await self._until_ready()
        except BaseException:
            self._program.abandon()
            raise

    async def member(self) -> dict[str, str]:
        """Return how routers find this node; nothing when it has died."""
        if self._program.has_ended:
            return {}
        told = self._program.told
        return {"address": told["grpc"], "id": told["node"], "host": self._host}

    async def check_health(self) -> None:
        """Serve replaces the replica where this raises."""
        self._program.require_alive()
        if trouble := await self._trouble("/health"):
            raise NodeUnavailable(trouble)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return how full the node is; Serve's controller hands that to the policy."""
        page = await self._http.get("/metrics")
        at_s, now = time.monotonic(), read_node(page.text)
        before, self._counted = self._counted, (at_s, now)
        if before is None or at_s <= before[0]:
            return {}
        return {LOAD: load_of(self._plan.role, before[1], now, at_s - before[0], self._plan.targets)}

    async def pid(self) -> int:
        """Return the node's process id."""
        return self._program.pid

    async def __del__(self) -> None:
        """Called by Serve when the replica is to stop and routers no longer find it: let the node drain."""
        await self._program.stop(within_s=self._plan.drain_s)
        await self._http.aclose()

    async def _until_ready(self) -> None:
        while await self._trouble("/ready"):
            self._program.require_alive()
            await asyncio.sleep(LOOK_S)

    async def _trouble(self, page: str) -> str:
        try:
            reply = await self._http.get(page)
        except httpx.TransportError as error:
            return f"the node does not answer: {error}"
        return "" if reply.status_code == HTTPStatus.OK else reply.text.strip()
