"""Measures the router on mock nodes: the time it adds, the CPU it takes, long prompts, memory. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.router_rows.long_prompts import LONG_PROMPTS
from twostep.benchmarks.router_rows.memory import MEMORY
from twostep.benchmarks.router_rows.short_requests import SHORT_REQUESTS

ROUTER = Benchmark("router", memory_peaks, [SHORT_REQUESTS, LONG_PROMPTS, MEMORY])

if __name__ == "__main__":
    sys.exit(run(ROUTER))
