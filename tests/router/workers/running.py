"""A router with workers as a real process, over scripted nodes in the test's own."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from twostep.tests.processes import commands
from twostep.tests.router.cluster import TEXT, say, until
from twostep.tests.router.fake_nodes import FakeDecode, FakePrefill

START_S = 90.0
END_S = 40.0


@dataclass(slots=True)
class RunningWorkers:
    """`log` are the lines of all its processes so far. Each client of `client()` has a connection of its own."""

    d: FakeDecode
    p: FakePrefill
    process: Process
    url: str
    grpc: str
    log: list[str]

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker that runs."""
        return workers_of(self.process.pid)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False, verify=False)

    async def all_gone(self, pids: Iterable[int]) -> None:
        """Wait until none of these processes is there any more."""

        async def are_gone() -> bool:
            return not any(os.path.exists(f"/proc/{pid}") for pid in pids)  # noqa: ASYNC240, PTH110

        await until(are_gone, timeout_s=START_S)

    async def ended(self) -> int:
        async with asyncio.timeout(START_S):
            return await self.process.wait()


def workers_of(pid: int) -> dict[int, int]:
    return {int(Path(row[row.index("--config") + 1]).stem): child for child, row in commands(pid).items() if "--config" in row}


def settings(**given: Any) -> Sequence[str]:
    values = {"workers": 2, "port": 0, "lease_s": 4, "drain_s": 20, **given}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@asynccontextmanager
async def running_workers(folder: Path, **given: Any) -> AsyncIterator[RunningWorkers]:
    """Start nodes and the router, and wait until every worker listens and can serve."""
    d = FakeDecode()
    p = FakePrefill("p", [d])
    for node in (d, p):
        await node.start()
    say(d, TEXT)
    address_file = folder / "router.json"
    told = settings(prefill=f"[{p.address}]", decode=f"[{d.address}]", address_file=address_file, **given)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "twostep.router", *told, stderr=PIPE, limit=1 << 20, start_new_session=True
    )
    log: list[str] = []
    reading = asyncio.create_task(_read(process, log))
    try:
        await until_logged(log, "router listens")
        addresses = json.loads(address_file.read_text())
        running = RunningWorkers(d, p, process, f"http://{addresses['http']}", addresses["grpc"], log)
        await ready(running, 2)
        yield running
    finally:
        await _end(process)
        await reading
        for node in (d, p):
            await node.stop()


async def ready(running: RunningWorkers, num_workers: int) -> None:
    """Wait until so many workers say that they can serve."""
    async with running.client() as http:

        async def are_ready() -> bool:
            report = (await http.get("/ready")).json()
            return report["ready"] and len(report["workers"]) == num_workers

        await until(are_ready, timeout_s=START_S)


async def until_logged(log: Sequence[str], message: str) -> None:
    """Wait until a line with that message is there. Raises TimeoutError."""

    async def is_logged() -> bool:
        return any(json.loads(line)["message"] == message for line in log if line.startswith("{"))

    await until(is_logged, timeout_s=START_S)


async def _end(process: Process) -> None:
    """Let the program take away what it has in the folder for temporary files, unless that takes too long."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def _read(process: Process, log: list[str]) -> None:
    assert process.stderr
    async for line in process.stderr:
        log.append(line.decode())  # noqa: PERF401 - each line as soon as it is there
