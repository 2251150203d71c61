"""vLLM as servers, the way it is deployed: a prefill and a decode server of one core each, KV over NIXL, behind a proxy."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from twostep.benchmarks.cluster.client import Client
from twostep.benchmarks.cluster.cores import keep_to
from twostep.benchmarks.cpu_rows.vllm_peer import VARIABLE
from twostep.cli.model_store.catalogue import find_model

PROXY = Path(__file__).parent / "vllm_proxy.py"
START_LIMIT_S = 220.0
LOG_CHARS = 4000
"""What is shown of a server's log when something has failed."""
LOOK_S = 0.5
KV = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", "kv_load_failure_policy": "fail"}
FLAGS = (
    *("--host", "127.0.0.1", "--dtype", "bfloat16", "--block-size", "32"),
    *("--max-model-len", "4096", "--max-num-seqs", "32", "--gpu-memory-utilization", "0.3"),
)


@dataclass(frozen=True, slots=True)
class VllmPair:
    """A client of the pair, and the groups of its processes."""

    client: Client
    groups: Sequence[int]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop its processes for the block: its workers spin on their cores also when they have nothing to do."""
        for group in self.groups:
            os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            for group in self.groups:
                os.killpg(group, signal.SIGCONT)


@asynccontextmanager
async def vllm_pair() -> AsyncIterator[VllmPair | None]:
    """Run vLLM's pair, the prefill server on the first core and the decode server on the second; None without vLLM."""
    python, cores = os.environ.get(VARIABLE), sorted(os.sched_getaffinity(0))[:2]
    if not python:
        yield None
        return
    async with AsyncExitStack() as stack:
        ports = free_ports(3)
        roles = ("kv_producer", cores[0], ports[0]), ("kv_consumer", cores[-1], ports[1])
        servers = [await stack.enter_async_context(_server(python, *role)) for role in roles]
        async with asyncio.timeout(START_LIMIT_S):
            await asyncio.gather(*(_healthy(port) for port in ports[:2]))
        for server, (_, core, _) in zip(servers, roles, strict=True):
            _pin_workers(server.pid, core)
        proxy = await stack.enter_async_context(_process(python, str(PROXY), *map(str, (ports[2], *ports[:2])), log=None))
        await _healthy(ports[2])
        client = Client(f"http://127.0.0.1:{ports[2]}")
        stack.push_async_callback(client.close)
        yield VllmPair(client, [process.pid for process in (*servers, proxy)])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@asynccontextmanager
async def _server(python: str, role: str, core: int, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    side_channel, internal = free_ports(2)
    command = ("-m", "vllm.entrypoints.cli.main", "serve", str(find_model("smollm2")), "--port", str(port), *FLAGS)
    kv = ("--kv-transfer-config", json.dumps({**KV, "kv_role": role}))
    settings = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
        "UCX_NET_DEVICES": "all",
        "UCX_TLS": "tcp,sm,self",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel),
        "VLLM_PORT": str(internal),
    }
    with tempfile.TemporaryFile("w+") as log:
        try:
            async with _process(python, *command, *kv, log=log.fileno(), **settings) as process:
                yield process
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-LOG_CHARS:])
            raise


@asynccontextmanager
async def _process(*command: str, log: int | None, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a process group of its own, which is ended with all that it has started."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | settings
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log, process_group=0)
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        await process.wait()


async def _healthy(port: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        while True:
            try:
                if (await http.get(f"http://127.0.0.1:{port}/health")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(LOOK_S)


def _pin_workers(server: int, core: int) -> None:
    """vLLM's worker with NIXL pins itself to the last core, whichever it was given: put it where it belongs."""
    for engine in _children(server):
        for worker in _children(engine):
            keep_to(core, worker)


def _children(process: int) -> list[int]:
    told = [task.joinpath("children").read_text(encoding="ascii") for task in Path(f"/proc/{process}/task").iterdir()]
    return [int(child) for line in told for child in line.split()]
