"""Measures twostep on CPU: steps, prefill, the start, a pair; in turn with vLLM where it is. See docs/benchmarks.md."""

import sys
from collections.abc import Mapping

from twostep.benchmarks.cpu_rows.decode import DECODE_STEPS, WEIGHTS_READ
from twostep.benchmarks.cpu_rows.isolation import ISOLATION
from twostep.benchmarks.cpu_rows.pair import PAIR
from twostep.benchmarks.cpu_rows.prefill import PREFILL_ROWS
from twostep.benchmarks.cpu_rows.start import START
from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import gemm_peaks, memory_peaks
from twostep.benchmarks.harness.rounds import Effort


async def peaks(effort: Effort) -> Mapping[str, float]:
    return {**await memory_peaks(effort), **gemm_peaks()}


CPU = Benchmark("cpu", peaks, [DECODE_STEPS, WEIGHTS_READ, PREFILL_ROWS, START, PAIR, ISOLATION])

if __name__ == "__main__":
    sys.exit(run(CPU))
