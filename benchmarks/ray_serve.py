"""Measures what Ray Serve costs beside `twostep up`, through its proxy and at the router's own door. See docs/benchmarks.md."""

import sys

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.ray_serve_rows.overhead import OVERHEAD

RAY_SERVE = Benchmark("ray_serve", memory_peaks, [OVERHEAD])

if __name__ == "__main__":
    sys.exit(run(RAY_SERVE))
