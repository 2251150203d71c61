"""What every benchmark's command does: measure the peaks, then row by row, print the table, write the JSON."""

import argparse
import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twostep.benchmarks.harness.machine import describe_machine
from twostep.benchmarks.harness.other_load import OtherLoad
from twostep.benchmarks.harness.report import Report
from twostep.benchmarks.harness.rounds import QUICK, Effort
from twostep.benchmarks.harness.rows import Measured, Missed, Outcome, Unmeasured, make_row
from twostep.benchmarks.harness.targets import read_targets

Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Fills some `rows` of a benchmark."""

    rows: tuple[str, ...]
    measure: Callable[[Effort], Awaitable[Outcomes]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`peaks` measures what this machine can do; its keys carry their units."""

    name: str
    peaks: Callable[[Effort], Awaitable[Mapping[str, float]]]
    measurements: Sequence[Measurement]


def run(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Run the benchmark as a command. Returns 1 when a measurement broke, else 0, be the targets met or not."""
    arguments = _parser(benchmark).parse_args(argv)
    outcomes: dict[str, Outcome] = {}
    report = asyncio.run(_measure(benchmark, QUICK if arguments.quick else Effort(), arguments.only, outcomes))
    print(report.as_table())
    if arguments.json:
        arguments.json.write_text(report.as_json(), encoding="utf-8")
    return int(any(isinstance(outcome, Missed) for outcome in outcomes.values()))


def _parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"benchmarks/{benchmark.name}.py", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine, peaks and samples there")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what fills a row whose name has TEXT in it")
    return parser


async def _measure(benchmark: Benchmark, effort: Effort, only: str, outcomes: dict[str, Outcome]) -> Report:
    targets, others = read_targets(benchmark.name), OtherLoad()
    peaks = await benchmark.peaks(effort)
    for measurement in benchmark.measurements:
        if any(only in row for row in measurement.rows):
            outcomes |= await _outcomes(measurement, effort)
    rows = [make_row(target, outcomes.get(target.name, Unmeasured("not measured in this run"))) for target in targets]
    measured = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Measured)}
    machine = {**describe_machine(), "busy with other work": f"{others.share():.0%}"}
    return Report(benchmark.name, effort.is_quick, machine, peaks, rows, measured)


async def _outcomes(measurement: Measurement, effort: Effort) -> Outcomes:
    print(f"measuring {', '.join(measurement.rows)}", file=sys.stderr, flush=True)
    try:
        return await measurement.measure(effort)
    except Exception as cause:  # noqa: BLE001 - whatever broke is a miss of these rows, and the others go on
        traceback.print_exc()
        return dict.fromkeys(measurement.rows, Missed(f"broke: {type(cause).__name__}: {cause}".splitlines()[0]))
