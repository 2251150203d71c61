"""The Serve deployment of the routers: a router beside each replica, told by Serve of its nodes, its HTTP passed on."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from twostep.core.errors import NodeUnavailable
from twostep.deploy.ray.forwarding import Forwarding
from twostep.deploy.ray.hosted import HostedProgram
from twostep.deploy.ray.nodes_file import Member, NodesFile
from twostep.deploy.ray.plan import RouterPlan
from twostep.deploy.ray.replica import replica_name, require_serve_agrees, with_model_folder

ASK_S = 5.0
FILE_POLL_S = 0.1
PAGE_S = 5.0


class RouterReplica:
    """The application's ingress."""

    async def __init__(self, plan: RouterPlan, prefill: DeploymentHandle, decode: DeploymentHandle) -> None:  # type: ignore[misc] # Serve awaits it
        require_serve_agrees("router", drain_s=plan.drain_s, stop_s=plan.stop_s)
        self._plan = plan
        self._folder = Path(tempfile.mkdtemp(prefix="twostep-nodes-"))
        try:
            path = self._folder / "nodes.json"
            nodes = NodesFile(path, {"prefill": partial(_ask, prefill), "decode": partial(_ask, decode)})
            await nodes.look()
            self._program = await _start_router(plan, path)
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        self._keeping = asyncio.create_task(nodes.keep(plan.discovery_s))
        self._forwarding = Forwarding(self._program.told["http"], reply_s=plan.reply_s)
        self._http = httpx.AsyncClient(base_url=f"http://{self._program.told['http']}", timeout=PAGE_S, trust_env=False)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._forwarding

    async def addresses(self) -> dict[str, str]:
        """Return where the router itself listens, by protocol."""
        return dict(self._program.told)

    async def check_health(self) -> None:
        """Serve replaces the replica where this raises: the router has ended, or no longer hears which nodes there are."""
        self._program.require_alive()
        if self._keeping.done():
            self._keeping.result()
        try:
            (await self._http.get("/health")).raise_for_status()
        except httpx.HTTPError as cause:
            raise NodeUnavailable(f"the router does not answer: {cause}") from cause

    async def __del__(self) -> None:
        """Called by Serve once the requests that came through it have ended: let the router's own ports drain."""
        await self._program.stop(within_s=self._plan.drain_s)
        self._keeping.cancel()
        await self._forwarding.close()
        await self._http.aclose()
        shutil.rmtree(self._folder)


async def _start_router(plan: RouterPlan, nodes: Path) -> HostedProgram:
    name = replica_name("router")
    discovery = {"file": {"path": str(nodes), "poll_s": FILE_POLL_S}}
    values = with_model_folder({**plan.values, "router_id": name, "discovery": discovery})
    return await HostedProgram.start(name, "twostep.router", values)


async def _ask(pool: DeploymentHandle) -> Sequence[Member | BaseException]:
    answers: Sequence[Any] = await pool.broadcast("member").results_async(timeout_s=ASK_S, return_exceptions=True)
    return answers
