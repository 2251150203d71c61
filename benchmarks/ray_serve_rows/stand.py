"""Starts the same cluster twice, fake nodes that keep time: by `twostep up`, and as Ray's `serve run` starts it."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from twostep.benchmarks.router_rows.stand import Server

STEP_S = 0.005
"""A step of a fast device."""
MODEL = f"fake:step_s={STEP_S}"
ENGINE = {"kv_bytes": 64 << 20}
UP = ("-c", "import sys; from twostep.cli.entry import main; sys.exit(main())", "up", "--port", "0", "--config")
SERVE_RUN = ("-c", "import sys; from ray.serve.scripts import cli; sys.exit(cli())", "run")
START_S = 120.0
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Stand:
    """`proxied` is Serve's own door, `direct` that of the router behind it; both are of one cluster, `up` of the other."""

    up: Server
    proxied: Server
    direct: Server


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    """Run both, ready to be asked."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _up(folder) as up, _serve_run(folder) as (proxied, direct):
            yield Stand(up, proxied, direct)


@asynccontextmanager
async def _up(folder: Path) -> AsyncIterator[Server]:
    file = _write(folder / "up.yaml", {"model": MODEL, "engine": ENGINE})
    async with _program(*UP, file) as process:
        assert process.stdout
        address = (await process.stdout.readline()).split()[3].decode().removeprefix("http://")
        yield Server("twostep up", address, process.pid, "fake")


@asynccontextmanager
async def _serve_run(folder: Path) -> AsyncIterator[tuple[Server, Server]]:
    port, router_port = _free_ports(2)
    args = {"model": MODEL, "engine": ENGINE, "router": {"port": router_port, "grpc_port": 0}}
    pools = [{"name": role, "num_replicas": 1, "ray_actor_options": {"num_cpus": 1}} for role in ("prefill", "decode")]
    application = {"name": "twostep", "import_path": "twostep.deploy.ray.application:build", "args": args, "deployments": pools}
    told = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    async with _program(*SERVE_RUN, _write(folder / "serve.yaml", told)) as process:
        proxied, direct = (f"127.0.0.1:{one}" for one in (port, router_port))
        await _until_proven(proxied)
        yield Server("through Serve", proxied, process.pid, "fake"), Server("at the router", direct, process.pid, "fake")


@asynccontextmanager
async def _program(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a session of its own; a Ctrl-C ends it, as a person would."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.communicate(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_proven(address: str) -> None:
    """Wait until bytes have moved between two nodes. Raises TimeoutError."""
    async with asyncio.timeout(START_S), httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        while not await _num_pairs(client):  # noqa: ASYNC110 - it is another program that comes to be ready
            await asyncio.sleep(0.2)


async def _num_pairs(client: httpx.AsyncClient) -> int:
    try:
        reply = await client.get("/ready")
        num: int = reply.json().get("proven_pairs", 0) if reply.is_success else 0
    except httpx.TransportError:
        return 0
    return num


def _write(path: Path, values: Mapping[str, Any]) -> str:
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def _free_ports(count: int) -> Sequence[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
