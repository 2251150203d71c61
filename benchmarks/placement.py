"""Measures placement: a trace replayed through the router's own code, and what one pick costs. See docs/benchmarks.md."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.placement_rows.constants import CONSTANTS
from twostep.benchmarks.placement_rows.pick import PICK_ROW
from twostep.benchmarks.placement_rows.replays import replays


async def no_peaks(effort: Effort) -> Mapping[str, float]:
    """Return nothing: time is simulated, and a pick is the interpreter's work."""
    del effort
    return {}


def benchmark(trace: Path | None) -> Benchmark:
    """Return the benchmark over `trace`, a JSON line per request: timestamp (ms), input_length, output_length, hash_ids."""
    return Benchmark("placement", no_peaks, [PICK_ROW, *replays(trace)])


def main(argv: Sequence[str]) -> int:
    """Run it as a command; `--trace FILE` comes beside what every benchmark takes."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--trace", type=Path, metavar="FILE")
    given, others = own.parse_known_args(argv)
    print(CONSTANTS.as_text())
    return run(benchmark(given.trace), others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
