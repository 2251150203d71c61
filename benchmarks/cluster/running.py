"""Starts what `twostep up` starts, with nodes that note their times and, where there are two cores, keep to one each."""

import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


class RunningCluster:
    """A cluster that can serve, its client, and the notes of its nodes."""

    def __init__(self, addresses: cluster.Cluster, client: Client, watch: Watch, folder: Path) -> None:
        self.addresses = addresses
        self.client = client
        self.watch = watch
        self._folder = folder
        self._read: dict[str, int] = {}

    def notes(self, name: str) -> list[Note]:
        """Return what node `name` (such as `decode-0`) has noted since the last call."""
        notes, self._read[name] = read_notes(_notes_file(self._folder, name), self._read.get(name, 0))
        return notes


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
            client = Client(addresses.url)
            try:
                yield RunningCluster(addresses, client, watch, folder)
            finally:
                await client.close()


def _timed(program: Program, core: int | None, folder: Path) -> Program:
    role = Role(program.name.partition("-")[0], core, str(_notes_file(folder, program.name)))
    environment = {**program.environment, VARIABLE: json.dumps(asdict(role))}
    return replace(program, module="twostep.benchmarks.cluster.timed_node", environment=environment)


def _notes_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.notes"


def _wait_silently(reason: str) -> None:
    """Nobody watches a benchmark's cluster start."""
    del reason
