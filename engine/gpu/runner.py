"""Runs batches on a device: launches them one after the other, and hears later what each has brought."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from twostep.core.errors import RequestFault
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.engine.batch import Batch, Chunk
from twostep.engine.device_report import DeviceReport
from twostep.engine.gpu.decode_graphs import DecodeGraphs
from twostep.engine.gpu.device import Device, Fetched, Mark
from twostep.engine.gpu.forward import GpuForward
from twostep.engine.gpu.step_inputs import MixedNumbers, mixed_numbers
from twostep.engine.memory_budget import MemoryLedger
from twostep.engine.runner import NOT_NUMBERS, Collect, Drawn, OnLayers, Ran
from twostep.engine.torch_kv_cache import TorchKVCache

NOT_A_NUMBER = -1
"""What a kernel draws from logits that are not numbers."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """Chunks that were launched. An outcome is where in `drawn` the token is, None without a draw, or why there is none."""

    drawn: Tensor
    outcomes: list[int | RequestFault | None]
    groups: list[tuple[range, Mark]]


@dataclass(frozen=True, slots=True)
class _Flight:
    outcomes: list[int | RequestFault | None]
    groups: list[tuple[range, Mark]]
    tokens: Fetched
    started: Mark
    ended: Mark


class GpuRunner:
    """Implements `Runner` over `kv`, with what `forward` and `graphs` compute there.

    A step that finds no memory is computed in pieces; a single chunk that finds none fails alone.
    """

    depth = 2

    def __init__(
        self,
        forward: GpuForward,
        graphs: DecodeGraphs,
        kv: TorchKVCache,
        device: Device,
        memory: MemoryLedger,
        *,
        fingerprint: Fingerprint,
        geometry: Geometry,
    ) -> None:
        self.kv = kv
        self.fingerprint = fingerprint
        self.geometry = geometry
        self.memory = memory
        self.kernels = f"triton on {device.name}"
        self.report = DeviceReport(capture_bytes=graphs.cost.num_bytes, capture_s=graphs.cost.seconds)
        self._forward = forward
        self._graphs = graphs
        self._device = device
        self._last_end: Mark | None = None

    def without_graphs(self) -> "GpuRunner":
        """Return a runner over the same memory that computes every step as it comes, to be compared with this one in turn."""
        none = DecodeGraphs(self._forward, self._device, self.kv.layout.block_tokens, ())
        return GpuRunner(
            *(self._forward, none, self.kv, self._device, self.memory), fingerprint=self.fingerprint, geometry=self.geometry
        )

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        with torch.inference_mode(), self._device.working():
            flight = self._launch(batch.chunks)
        return lambda: self._collect(flight, on_layers)

    def _launch(self, chunks: Sequence[Chunk]) -> _Flight:
        placed = self._forward.rows.place(chunks)
        launch = self._prepare(chunks, placed.rows)
        self._forward.rows.write(placed.changes)
        # Not before: while the host brings numbers over to a device that has come to its end, that waits.
        started = self._device.mark()
        part = launch()
        return _Flight(part.outcomes, part.groups, self._device.fetch(part.drawn), started, self._device.mark())

    def _prepare(self, chunks: Sequence[Chunk], rows: Sequence[int]) -> Callable[[], _Part]:
        """Do what can be done before the step begins; returns the rest."""
        if any(len(chunk.tokens) > 1 for chunk in chunks):
            return self._prepare_any(chunks, rows, "prompt")
        size = self._graphs.size_for(chunks)
        if size is None:
            return self._prepare_any(chunks, rows, "size")
        self.report.graph_hits += 1
        self.report.graph_rows += size
        self.report.padding_rows += size - len(chunks)
        replay = self._graphs.prepare(chunks, rows, size)

        def launch() -> _Part:
            drawn = replay()
            outcomes = [place if chunk.draw else None for place, chunk in enumerate(chunks)]
            return _Part(drawn, list[int | RequestFault | None](outcomes), self._all_groups())

        return launch

    def _prepare_any(self, chunks: Sequence[Chunk], rows: Sequence[int], why: str) -> Callable[[], _Part]:
        self.report.graph_misses[why] += 1
        numbers = self._numbers(chunks, rows)
        return lambda: self._compute(chunks, numbers) or self._compute_in_pieces(chunks, rows)

    def _numbers(self, chunks: Sequence[Chunk], rows: Sequence[int]) -> MixedNumbers:
        return mixed_numbers(chunks, rows, self.kv.layout.block_tokens, self._forward.rows.spare)

    def _compute(self, chunks: Sequence[Chunk], numbers: MixedNumbers) -> _Part | None:
        """Launch chunks of any shape; returns None, when there is not enough memory. They can be launched again then."""
        groups: list[tuple[range, Mark]] = []
        places = count()
        outcomes: list[int | RequestFault | None] = [next(places) if chunk.draw else None for chunk in chunks]
        try:
            inputs = numbers.inputs(self._device.send(numbers.memory))
            drawn = torch.empty(len(inputs.drawers), dtype=torch.int64, device=self._device.place)
            self._forward.run(inputs, drawn, lambda layers: groups.append((layers, self._device.mark())))
        except torch.OutOfMemoryError as cause:
            log.warning("a step finds no memory", extra={"chunks": len(chunks), "reason": str(cause).partition("\n")[0]})
            return None
        return _Part(drawn, outcomes, groups)

    def _compute_in_pieces(self, chunks: Sequence[Chunk], rows: Sequence[int]) -> _Part:
        """Launch half of the chunks, then the others. Out of reach of the error: that keeps alive what the step had."""
        left_bytes = self._device.free_bytes()
        if len(chunks) == 1:
            self.report.out_of_memory["ended"] += 1
            what = f"{len(chunks[0].tokens)} tokens do not fit into the device's memory, of which {left_bytes} bytes are free"
            return _Part(torch.empty(0, dtype=torch.int64, device=self._device.place), [RequestFault(what)], self._all_groups())
        self.report.out_of_memory["shrunk"] += 1
        middle = len(chunks) // 2
        first = self._piece(chunks[:middle], rows[:middle])
        second = self._piece(chunks[middle:], rows[middle:])
        later = [len(first.drawn) + each if isinstance(each, int) else each for each in second.outcomes]
        return _Part(torch.cat((first.drawn, second.drawn)), [*first.outcomes, *later], self._all_groups())

    def _piece(self, chunks: Sequence[Chunk], rows: Sequence[int]) -> _Part:
        return self._compute(chunks, self._numbers(chunks, rows)) or self._compute_in_pieces(chunks, rows)

    def _all_groups(self) -> list[tuple[range, Mark]]:
        """Say that all layers are written with what has been launched so far."""
        end = self._device.mark()
        return [(group, end) for group in self._forward.layer_groups]

    def _collect(self, flight: _Flight, on_layers: OnLayers) -> Ran:
        waited = None
        for layers, written in flight.groups:
            # Each wait lets other threads run, and one mark may be the end of all groups.
            if written is not waited:
                written.wait()
            waited = written
            on_layers(layers)
        tokens = flight.tokens.wait().tolist()
        flight.ended.wait()
        gap_s = None if self._last_end is None else flight.started.seconds_since(self._last_end)
        self._last_end = flight.ended
        return Ran([_drawn(outcome, tokens) for outcome in flight.outcomes], gap_s)


def _drawn(outcome: int | RequestFault | None, tokens: Sequence[int]) -> Drawn:
    if not isinstance(outcome, int):
        return outcome
    if tokens[outcome] == NOT_A_NUMBER:
        return RequestFault(NOT_NUMBERS)
    return tokens[outcome]
