"""Measures the router on mock nodes: the time it adds, the CPU it takes, long prompts, memory. See docs/benchmarks.md."""

import sys
from collections.abc import Mapping

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.router_rows.long_prompts import LONG_PROMPTS
from twostep.benchmarks.router_rows.memory import MEMORY
from twostep.benchmarks.router_rows.short_requests import SHORT_REQUESTS


async def peaks(effort: Effort) -> Mapping[str, float]:
    return memory_peaks(effort)


ROUTER = Benchmark("router", peaks, [SHORT_REQUESTS, LONG_PROMPTS, MEMORY])

if __name__ == "__main__":
    sys.exit(run(ROUTER))
