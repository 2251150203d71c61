"""Measures the autoscaler on a simulated fleet, against an HPA, a static peak and a clairvoyant. See docs/autoscaler.md.

`python benchmarks/autoscaler.py --trace FILE`: a trace in Azure's or Mooncake's form; nothing depends on the machine.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from twostep.benchmarks.autoscaler_rows.policies import measurements
from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.rounds import Effort


async def peaks(_: Effort) -> Mapping[str, float]:
    return {}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trace", type=Path, metavar="FILE")
    arguments, rest = parser.parse_known_args(argv)
    return run(Benchmark("autoscaler", peaks, measurements(arguments.trace)), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
