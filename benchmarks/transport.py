"""Measures how long a write takes over each transport, by size. See docs/benchmarks.md."""

import sys
from collections.abc import Mapping

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.transport_rows.writes import WRITES


async def peaks(effort: Effort) -> Mapping[str, float]:
    return memory_peaks(effort)


TRANSPORT = Benchmark("transport", peaks, WRITES)

if __name__ == "__main__":
    sys.exit(run(TRANSPORT))
