"""Measures what finding a thousand nodes costs a router, and how old what it knows is. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.discovery_rows.pool import POOL
from twostep.benchmarks.discovery_rows.watch import WATCH
from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import json_peaks

DISCOVERY = Benchmark("discovery", json_peaks, [WATCH, POOL])

if __name__ == "__main__":
    sys.exit(run(DISCOVERY))
