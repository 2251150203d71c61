"""Measures the router on mock nodes: the time and CPU it takes, long prompts, memory, workers. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.router_rows.long_prompts import LONG_PROMPTS
from twostep.benchmarks.router_rows.memory import MEMORY
from twostep.benchmarks.router_rows.short_requests import SHORT_REQUESTS
from twostep.benchmarks.router_rows.workers import WORKERS

ROUTER = Benchmark("router", memory_peaks, [SHORT_REQUESTS, LONG_PROMPTS, MEMORY, WORKERS])

if __name__ == "__main__":
    sys.exit(run(ROUTER))
