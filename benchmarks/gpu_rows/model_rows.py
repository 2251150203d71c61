"""Decode steps and prefill of a model, beside what the device can do; and what the host and the graphs cost the loop."""

from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from twostep.benchmarks.gpu_rows.one_model import OneModel, random_decoder
from twostep.benchmarks.gpu_rows.peaks import COPY, GEMM, Peaks
from twostep.benchmarks.gpu_rows.stage import DRY, QWEN, SMALL, Config, Stage
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured, Outcome
from twostep.benchmarks.harness.targets import read_published
from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.gpu.device import Device
from twostep.engine.kernels.twins import TorchKernels

BATCHES = (1, 16, 64, 256)
PROMPTS = ("512", "2k", "8k")
READ_AT = 2
"""Which batch is compared with the device's peak."""
GAP = "host gap of the decode loop"
MISSES = "graph misses in 10k mixed steps"
SAME_ANSWERS = "answers that differ from the reference kernels', float32"


@dataclass(frozen=True, slots=True)
class Rows:
    """The names of a model's rows."""

    model: str

    def decode(self, batch: int) -> str:
        context = ", 1k context" if (self.model, batch) == (QWEN, 1) else ""
        return f"{self.model} bf16, decode step, batch {batch}{context}"

    def plain(self, batch: int) -> str:
        return f"{self.model} bf16, decode step without graphs, batch {batch}"

    def prefill(self, prompt: str) -> str:
        return f"{self.model} bf16, prefill of {prompt}"

    @property
    def read(self) -> str:
        return f"{self.model} bf16, memory read by a decode step, batch {BATCHES[READ_AT]}"

    @property
    def arithmetic(self) -> str:
        return f"{self.model} bf16, arithmetic of a prefill of {PROMPTS[-1]}"


class ModelBench:
    """One model, made when it is first measured and kept for its other rows."""

    def __init__(self, name: str, stage: Stage, peaks: Peaks) -> None:
        self._name, self._rows = name, Rows(name)
        self._stage, self._peaks = stage, peaks
        self._published = read_published("h200")
        self._made: OneModel | None = None

    @property
    def model(self) -> OneModel:
        if self._made is None:
            self._made = OneModel(self._stage, random_decoder(self._stage.models[self._name], self._stage.device.place))
        return self._made

    def measurements(self) -> list[Measurement]:
        rows, gap = self._rows, [GAP] if self._name == QWEN else []
        decodes, plain = [*map(rows.decode, BATCHES), rows.read, *gap], [*map(rows.plain, BATCHES)]
        found = [
            Measurement(tuple(decodes), self._decode),
            Measurement(tuple(plain), self._plain),
            Measurement((*map(rows.prefill, PROMPTS), rows.arithmetic), self._prefill),
        ]
        return [*found, Measurement((MISSES,), self._mixed)] if self._name == QWEN else found

    async def _decode(self, effort: Effort) -> Outcomes:
        model, sizes, rows, timed = self.model, self._stage.sizes, self._rows, self._stage.timed
        steps = [self._stage.repeat(effort, partial(model.decode, size)) for size in sizes.batches]
        found = {
            rows.decode(batch): timed([one.step_ms for one in ours], note=self._published.get(rows.decode(batch), ""))
            for batch, ours in zip(BATCHES, steps, strict=True)
        }
        num_bytes = model.step_bytes + sizes.batches[READ_AT] * model.context_bytes(sizes.context)
        found[rows.read] = timed([num_bytes / 1e6 / one.step_ms for one in steps[READ_AT]], self._peaks.found()[COPY])
        if self._name == QWEN:
            gaps = [[100 * one.gap_share for one in ours] for ours in steps]
            listed = ", ".join(f"batch {batch}: {median(ours):.2g}" for batch, ours in zip(BATCHES, gaps, strict=True))
            found[GAP] = timed(max(gaps, key=median), note=f"the worst of its batches; {listed}")
        return found

    async def _plain(self, effort: Effort) -> Outcomes:
        batches = zip(BATCHES, self._stage.sizes.batches, strict=True)
        with self.model.without_graphs():
            return {
                self._rows.plain(name): self._stage.timed(
                    [one.step_ms for one in self._stage.repeat(effort, partial(self.model.decode, size))]
                )
                for name, size in batches
            }

    async def _prefill(self, effort: Effort) -> Outcomes:
        model, lengths, rows = self.model, self._stage.sizes.prompts, self._rows
        found = dict[str, Outcome]()
        for name, length in zip(PROMPTS, lengths, strict=True):
            took_s = self._stage.repeat(effort, partial(model.prefill_s, length))
            found[rows.prefill(name)] = self._stage.timed(
                [1e3 * one for one in took_s], note=self._published.get(rows.prefill(name), "")
            )
        # The last is the one whose arithmetic is told.
        tflops = [model.prefill_flops(lengths[-1]) / 1e12 / one for one in took_s]
        note = "products of the layers and causal attention, of all time to the first token"
        found[rows.arithmetic] = self._stage.timed(tflops, self._peaks.found()[GEMM], note)
        return found

    async def _mixed(self, _: Effort) -> Outcomes:
        report = self.model.runner.report
        before = replace(report, graph_misses=report.graph_misses.copy())
        self.model.mix(self._stage.sizes.num_mixed_steps, self._stage.sizes.live_requests)
        misses = report.graph_misses - before.graph_misses
        share = (report.padding_rows - before.padding_rows) / max(1, report.graph_rows - before.graph_rows)
        hits, prompts = report.graph_hits - before.graph_hits, misses.pop("prompt", 0)
        note = f"{hits} replayed, {share:.0%} of their rows padding; {prompts} with parts of prompts"
        return {MISSES: Measured((float(misses.total()),), note=note)}


def same_answers(stage: Stage) -> Measurement:
    """A small model's answers in float32, with these kernels and with the references on a CPU."""

    async def measure(_: Effort) -> Outcomes:
        wrong = []
        for name, config in stage.models.items():
            prompts = [[(7 * at) % 131 for at in range(length)] for length in (1, 9)]
            devices: tuple[Device, Device] = stage.device, CpuDevice(TorchKernels())
            found, right = (_answers(device, {**config, **SMALL}, prompts) for device in devices)
            wrong += [f"{name}: {ours} for {theirs}" for ours, theirs in zip(found, right, strict=True) if ours != theirs]
        return {SAME_ANSWERS: Measured((float(len(wrong)),), note="; ".join(wrong))}

    return Measurement((SAME_ANSWERS,), measure)


def _answers(device: Device, config: Config, prompts: list[list[int]]) -> list[list[int]]:
    # Drawn on a CPU for both: other devices draw other numbers.
    decoder = random_decoder(config, torch.device("cpu"), "float32").to(device.place)
    return OneModel(Stage(device, DRY, {}), decoder, dtype="float32").answer(prompts, 2)
