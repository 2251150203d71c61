"""Measures how long a write takes over each transport, by size. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.transport_rows.writes import WRITES

TRANSPORT = Benchmark("transport", memory_peaks, WRITES)

if __name__ == "__main__":
    sys.exit(run(TRANSPORT))
