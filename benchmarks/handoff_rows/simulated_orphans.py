"""What simulated faults leave behind: the storm of `tests/simulator`, until it has met ten thousand of them."""

import asyncio
import os
from itertools import accumulate, count

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.tests.simulator.scenario import draw
from twostep.tests.simulator.storm import storm

SIMULATED = "orphaned blocks after 10,000 simulated faults"


async def measure(effort: Effort) -> Outcomes:
    num_faults = effort.pick(10_000, 500)
    num_seeds = _seeds_with(num_faults)
    report = await asyncio.to_thread(lambda: storm(range(num_seeds), jobs=len(os.sched_getaffinity(0)), tell=_say_nothing))
    note = (
        f"{num_faults} faults, {num_seeds} seeds, {report.num_events} events; a seed in which anything is held at the end fails"
    )
    failed = len(report.failures)
    # The simulator tells of the first invariant that a seed breaks, not how many blocks: each counts as one.
    return {SIMULATED: Measured((float(failed),), num_failed=failed, note=note)}


def _seeds_with(num_faults: int) -> int:
    """Return how many seeds, from 0 on, hold at least so many faults."""
    sums = accumulate(len(draw(seed).faults) for seed in count())
    return next(seed + 1 for seed, total in enumerate(sums) if total >= num_faults)


def _say_nothing(progress: str) -> None:
    """The benchmark has its own output."""
    del progress


SIMULATED_ORPHANS = Measurement((SIMULATED,), measure)
