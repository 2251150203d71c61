"""Starts what a router is measured with: our mock nodes behind our router, a mock of the peers' nodes behind each peer.

`TWOSTEP_ROUTER_PEERS` names the peers' programs, separated by colons: paths to `vllm-router`, `smg`, `sglang-router`.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from twostep.benchmarks.router_rows.load import Plan, Result
from twostep.benchmarks.router_rows.shape import WORD
from twostep.cli.model_store.catalogue import find_model
from twostep.router.text.tokenizer import load_tokenizer

VARIABLE = "TWOSTEP_ROUTER_PEERS"
MODEL = "smollm2"
CHAT = "/v1/chat/completions"
START_S = 60.0
STOP_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A program that answers at `address`; `pid` names it to the kernel. `model` is what clients ask for."""

    name: str
    address: str
    pid: int
    model: str = "mock"

    def cpu_s(self) -> float:
        """Return what the program has used, with the processes that it has started, ended ones included."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))

    def resident_bytes(self) -> int:
        return sum(_resident_bytes(pid) for pid in _family(self.pid))

    def proportional_bytes(self) -> int:
        """Return what the program and its processes keep resident, a page that several share counted once."""
        return sum(_proportional_bytes(pid) for pid in _family(self.pid))


@dataclass(frozen=True, slots=True)
class Stand:
    """Our router, the mock that answers directly in the time that our mock nodes take, and the peers that route to it."""

    ours: Server
    direct: Server
    peers: Sequence[Server]


@asynccontextmanager
async def standing(*, with_peers: bool = True, **settings: object) -> AsyncIterator[Stand]:
    """Run everything, ready to be asked; our router with `settings` of its configuration."""
    with tempfile.TemporaryDirectory() as name:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(_our_router(Path(name), settings))
            process, told = await stack.enter_async_context(_telling("mock_openai"))
            direct = Server("direct", told["http"], process.pid)
            paths = [path for path in os.environ.get(VARIABLE, "").split(":") if path and with_peers]
            peers = [await stack.enter_async_context(_peer(Path(path), direct.address)) for path in paths]
            yield Stand(ours, direct, peers)


async def send(server: Server, bodies: Sequence[str], *, at_once: int = 1) -> Result:
    """Have the load client send `bodies`, in a process of its own."""
    plan = Plan(server.address, CHAT, list(bodies), at_once)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "twostep.benchmarks.router_rows.load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate(json.dumps(asdict(plan)).encode())
    return Result(**json.loads(told))


@asynccontextmanager
async def _our_router(folder: Path, wanted: Mapping[str, object]) -> AsyncIterator[Server]:
    words = load_tokenizer(str(find_model(MODEL)))
    [token, *_] = words.encode(WORD)
    async with _telling("mock_nodes", str(words.vocab_size), str(token)) as (_, nodes):
        addresses = folder / "router.json"
        settings = {
            **wanted,
            "model": find_model(MODEL),
            "port": 0,
            "address_file": addresses,
            "prefill": json.dumps([nodes["prefill"]]),
            "decode": json.dumps([nodes["decode"]]),
        }
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        async with _program(sys.executable, "-m", "twostep.router", "--log-level", "warning", *given) as process:
            while not addresses.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            address = json.loads(addresses.read_text())["http"]
            await _until_ready(address, "/ready")
            yield Server("ours", address, process.pid, MODEL)


@asynccontextmanager
async def _peer(program: Path, worker: str) -> AsyncIterator[Server]:
    port, metrics_port = _free_port(), _free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    launch = [] if program.name == "vllm-router" else ["launch"]
    policy = ["--worker-urls", f"http://{worker}", "--policy", "cache_aware", "--log-level", "error"]
    async with _program(str(program), *launch, *arguments, *policy) as process:
        address = f"127.0.0.1:{port}"
        await _until_ready(address, "/readiness")
        yield Server(program.name, address, process.pid)


@asynccontextmanager
async def _telling(module: str, *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """Run one of our mocks, and yield what it tells of itself."""
    name = f"twostep.benchmarks.router_rows.{module}"
    async with _program(sys.executable, "-m", name, *arguments, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout
        yield process, json.loads(await process.stdout.readline())


@asynccontextmanager
async def _program(*command: str, stdout: int = asyncio.subprocess.DEVNULL) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, stdout=stdout, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_ready(address: str, path: str) -> None:
    """Wait for a 200. Raises TimeoutError."""
    async with asyncio.timeout(START_S):
        while await _status(address, path) != b"200":  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _status(address: str, path: str) -> bytes:
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return b""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line.split(b" ")[1] if b" " in line else b""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime, stime, and those of children that have ended.
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _proportional_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
