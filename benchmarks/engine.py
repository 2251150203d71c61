"""Measures the engine under a mixed load, in turn with vLLM where it is, and for long. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.cpu import peaks
from twostep.benchmarks.engine_rows.mixed import MIXED_LOADS
from twostep.benchmarks.engine_rows.priority import PRIORITY
from twostep.benchmarks.engine_rows.soak import SOAKS
from twostep.benchmarks.harness.command import Benchmark, run

ENGINE = Benchmark("engine", peaks, [*MIXED_LOADS, PRIORITY, *SOAKS])

if __name__ == "__main__":
    sys.exit(run(ENGINE))
