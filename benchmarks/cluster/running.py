"""Starts what `twostep up` starts, with nodes that note their times and, where there are two cores, keep to one each."""

import asyncio
import json
import os
import select
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

from twostep.benchmarks.cluster.client import Client
from twostep.benchmarks.cluster.timed_node import VARIABLE, Role
from twostep.benchmarks.cluster.timings import Note, read_notes
from twostep.cli import cluster
from twostep.cli.child import Program
from twostep.cli.cluster_config import plan_cluster
from twostep.cli.watch import Watch

SMOLLM2_SHAPE = "fake:vocab_size=128,num_layers=30,num_kv_heads=3,head_dim=64"
"""The fake model with KV of SmolLM2-135M's size."""
GONE_S = 30.0


class RunningCluster:
    """A cluster that can serve, its client, and the notes of its nodes. What is started later ends with `later`."""

    def __init__(
        self,
        addresses: cluster.Cluster,
        client: Client,
        watch: Watch,
        folder: Path,
        nodes: Mapping[str, Program],
        later: AsyncExitStack,
    ) -> None:
        self.addresses = addresses
        self.client = client
        self.watch = watch
        self._folder = folder
        self._nodes = nodes
        self._later = later
        self._read: dict[str, int] = {}

    def notes(self, name: str) -> list[Note]:
        """Return what node `name` (such as `decode-0`) has noted since the last call."""
        notes, self._read[name] = read_notes(_notes_file(self._folder, name), self._read.get(name, 0))
        return notes

    async def kill_and_restart(self, name: str) -> None:
        """Kill a node with SIGKILL, start it again at its address, and return when it listens."""
        [told] = [node for node in (*self.addresses.prefill, *self.addresses.decode) if node.name == name]
        ports = {"port": _port(told.grpc), "metrics_port": _port(told.metrics)}
        program = replace(self._nodes[name], config={**self._nodes[name].config, **ports})
        address_file = Path(program.config["address_file"])
        await asyncio.to_thread(_kill, self.watch.pids()[name], address_file)
        await self._later.enter_async_context(self.watch.started([program], self._folder, stop_s=cluster.NODE_STOP_S))
        await cluster.read_when_written(address_file)


@asynccontextmanager
async def running_cluster(*settings: str, is_pinned: bool = True) -> AsyncIterator[RunningCluster]:
    """Run the cluster that `settings` (`key=value`, as `twostep up --set` takes them) describe."""
    with tempfile.TemporaryDirectory() as name:
        folder, cores = Path(name), sorted(os.sched_getaffinity(0))
        plan = plan_cluster(None, ["router.port=0", *settings], folder, len(cores))
        pins = cores if is_pinned and len(plan.nodes) <= len(cores) else [None] * len(plan.nodes)
        nodes = [_timed(program, core, folder) for program, core in zip(plan.nodes, pins, strict=False)]
        watch = Watch()
        async with cluster.running(replace(plan, nodes=tuple(nodes)), folder, watch, _wait_silently) as addresses:
            client, programs = Client(addresses.url), {program.name: program for program in nodes}
            async with AsyncExitStack() as later:
                later.push_async_callback(client.close)
                yield RunningCluster(addresses, client, watch, folder, programs, later)


def _timed(program: Program, core: int | None, folder: Path) -> Program:
    role = Role(program.name.partition("-")[0], core, str(_notes_file(folder, program.name)))
    environment = {**program.environment, VARIABLE: json.dumps(asdict(role))}
    return replace(program, module="twostep.benchmarks.cluster.timed_node", environment=environment)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _kill(pid: int, address_file: Path) -> None:
    """Kill a process, and return when it is gone, and what it has told of its address."""
    address_file.unlink()
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], GONE_S)[0]:
            raise TimeoutError(f"process {pid} is still there {GONE_S:g} s after SIGKILL")
    finally:
        os.close(descriptor)


def _notes_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.notes"


def _wait_silently(reason: str) -> None:
    """Nobody watches a benchmark's cluster start."""
    del reason
