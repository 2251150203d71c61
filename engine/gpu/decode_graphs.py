"""Replays decode steps from graphs: one for each padded batch, all over the same static inputs, captured before anybody asks.

A graph is replayed for a batch that is what it was captured for: one row for each sequence, not more than it has room for.
Whatever else is computed as it comes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostep.core.clock import Clock
from twostep.engine.batch import Chunk
from twostep.engine.gpu.device import Device, Graph
from twostep.engine.gpu.forward import GpuForward
from twostep.engine.gpu.step_inputs import DecodeColumns
from twostep.engine.progress import Tell


def graph_sizes(max_batch: int) -> tuple[int, ...]:
    """Return the batches that are captured, the last of them `max_batch`: less than half of one is padding."""
    steps = [1, 2, 4, *range(8, 33, 8), *range(48, 129, 16), *range(160, max_batch, 32)]
    return (*(size for size in steps if size < max_batch), max_batch) if max_batch else ()


@dataclass(frozen=True, slots=True)
class CaptureCost:
    """What capturing took: memory that nobody else has, and time."""

    num_bytes: int = 0
    seconds: float = 0.0


class DecodeGraphs:
    """Graphs of `forward` for batches of `sizes`."""

    def __init__(self, forward: GpuForward, device: Device, block_tokens: int, sizes: Sequence[int]) -> None:
        self.cost = CaptureCost()
        self._forward = forward
        self._device = device
        self._sizes = sizes
        self._largest = max(sizes, default=0)
        self._columns = DecodeColumns(self._largest, block_tokens, forward.rows.spare)
        self._host = self._columns.columns.new()
        self._numbers = self._columns.columns.new(device.place)
        self._drawn = torch.zeros(self._largest, dtype=torch.int64, device=device.place)
        self._graphs: dict[int, Graph] = {}

    def capture(self, tell: Tell, clock: Clock = time.monotonic) -> None:
        """Capture all graphs, the largest first: the smaller ones find room in what it needs."""
        started_at, before = clock(), self._device.free_bytes()
        for number, size in enumerate(reversed(self._sizes), start=1):
            tell(f"capturing decode steps: {number} of {len(self._sizes)}, for {size} sequences")
            self._capture(size)
        self.cost = CaptureCost(before - self._device.free_bytes(), clock() - started_at)

    def size_for(self, chunks: Sequence[Chunk]) -> int | None:
        """Return the size of the graph that may be replayed for `chunks` of one token each; None when there are too many."""
        return next((size for size in self._sizes if size >= len(chunks)), None)

    def prepare(self, chunks: Sequence[Chunk], rows: Sequence[int], size: int) -> Callable[[], Tensor]:
        """Bring the step's numbers to the device; returns what launches it, and returns what it draws, [chunk]."""
        self._columns.fill(self._host, chunks, rows, size)
        self._device.fill(self._numbers, self._host)

        def launch() -> Tensor:
            self._graphs[size].replay()
            # The next replay overwrites what this one draws.
            return self._drawn[: len(chunks)].clone()

        return launch

    def _capture(self, size: int) -> None:
        self._columns.fill(self._host, (), (), size)
        self._device.fill(self._numbers, self._host)
        inputs, drawn = self._columns.inputs(self._numbers, size), self._drawn[:size]

        def work() -> None:
            self._forward.run(inputs, drawn)

        # What is compiled, loaded or set up on first use is no part of a graph.
        work()
        self._device.finish()
        self._graphs[size] = self._device.capture(work)
