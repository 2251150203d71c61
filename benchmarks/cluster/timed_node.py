"""A node as it is, but for a runner that notes when steps, layer groups and copies begin and end.

Started as `python -m twostep.benchmarks.cluster.timed_node --config FILE`; the environment variable `TIMED_NODE` says, as
JSON, which role it plays, which core it is pinned to (or null), and to which file its notes go.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from twostep.benchmarks.cluster.timings import COPY, STEP
from twostep.core.digest import Digests
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece, OpenMemory, Staging
from twostep.core.memory import MemoryRegion
from twostep.core.program import leave, run_program
from twostep.core.ticket import TokenRange
from twostep.decode_node import program as decode
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.batch import Batch
from twostep.engine.kv_cache import KVCache
from twostep.engine.runner import Collect, OnLayers, Ran, Runner
from twostep.node.materials import Materials
from twostep.node.program import HostedNode, NodeProgram, serve_node
from twostep.prefill_node import program as prefill
from twostep.prefill_node.config import PrefillNodeConfig

VARIABLE = "TIMED_NODE"
N = TypeVar("N", bound=HostedNode)


@dataclass(frozen=True, slots=True)
class Role:
    """What `TIMED_NODE` holds."""

    role: str
    core: int | None
    notes: str


class Notes:
    """Appends notes to a file, each whole: whoever reads along sees no half ones."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, note: Sequence[object]) -> None:
        """Write numbers, not objects: a note must take microseconds of what is timed."""
        os.write(self._file, json.dumps(note).encode() + b"\n")


class TimedKV:
    """A KV cache whose copies-in are noted."""

    def __init__(self, kv: KVCache, notes: Notes) -> None:
        self._kv = kv
        self._notes = notes

    @property
    def layout(self) -> KVLayout:
        return self._kv.layout

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    def region(self) -> MemoryRegion:
        return self._kv.region()

    def open_memory(self, num_bytes: int) -> OpenMemory:
        return self._kv.open_memory(num_bytes)

    def open_host_memory(self, num_bytes: int) -> OpenMemory:
        return self._kv.open_host_memory(num_bytes)

    def staging(self, unit_bytes: int, num_slots: int) -> Staging:
        return self._kv.staging(unit_bytes, num_slots)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        started = time.monotonic()
        digests = self._kv.copy_in(extent, piece, table)
        num_bytes = len(piece.layers) * len(piece.source_blocks) * self.layout.layer_block_bytes
        self._notes.add((COPY, num_bytes, (started, time.monotonic())))
        return digests

    def digest(self, layers: range, tokens: TokenRange, table: Sequence[BlockId]) -> Digests:
        return self._kv.digest(layers, tokens, table)


class TimedRunner:
    """A runner whose steps are noted, and in them the time in which each layer group was taken up."""

    def __init__(self, runner: Runner, notes: Notes) -> None:
        self.kv: KVCache = TimedKV(runner.kv, notes)
        self.fingerprint = runner.fingerprint
        self.geometry = runner.geometry
        self.kernels = runner.kernels
        self.depth = runner.depth
        self.memory = runner.memory
        self.report = runner.report
        self._runner = runner
        self._notes = notes

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        groups: list[tuple[float, float]] = []

        def timed(layers: range) -> None:
            started = time.monotonic()
            on_layers(layers)
            groups.append((started, time.monotonic()))

        started = time.monotonic()
        collect = self._runner.launch(batch, timed)

        def collected() -> Ran:
            ran = collect()
            span = started, time.monotonic()
            self._notes.add((STEP, [(chunk.start, chunk.end) for chunk in batch.chunks], groups, span))
            return ran

        return collected


def _timed(program: NodeProgram[N], notes: Notes) -> NodeProgram[N]:
    def build(materials: Materials) -> N:
        return program.build(replace(materials, runner=TimedRunner(materials.runner, notes)))

    return replace(program, build=build)


def main() -> int:
    """Run the node that the environment asks for. Returns its exit code."""
    asked = Role(**json.loads(os.environ[VARIABLE]))
    notes = Notes(Path(asked.notes))
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})
    if asked.role == "prefill":
        return run_program(
            "timed prefill node",
            __doc__ or "",
            PrefillNodeConfig,
            lambda config, stop: serve_node(_timed(prefill.node_program(config), notes), config, stop, None),
        )
    return run_program(
        "timed decode node",
        __doc__ or "",
        DecodeNodeConfig,
        lambda config, stop: serve_node(_timed(decode.node_program(config), notes), config, stop, None),
    )


if __name__ == "__main__":
    leave(main())
