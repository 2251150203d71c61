"""What simulated faults leave behind: the storm of `tests/simulator`, until it has met ten thousand of them."""

import asyncio
import os

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.tests.simulator.storm import Report, storm

SIMULATED = "orphaned blocks after 10,000 simulated faults"
BATCH = 250
"""Seeds at a time: how many of a seed's faults happen, only its run can tell."""


async def measure(effort: Effort) -> Outcomes:
    num_faults = effort.pick(10_000, 500)
    reports = await asyncio.to_thread(lambda: _storms_with(num_faults))
    faults, events = sum(one.num_faults for one in reports), sum(one.num_events for one in reports)
    seeds, failed = sum(one.num_seeds for one in reports), sum(len(one.failures) for one in reports)
    note = f"{faults} faults, {seeds} seeds, {events} events; a seed in which anything is held at the end fails"
    # The simulator tells of the first invariant that a seed breaks, not how many blocks: each counts as one.
    return {SIMULATED: Measured((float(failed),), num_failed=failed, note=note)}


def _storms_with(num_faults: int) -> list[Report]:
    """Run seeds, from 0 on, until so many faults have happened."""
    reports: list[Report] = []
    while sum(one.num_faults for one in reports) < num_faults:
        first = len(reports) * BATCH
        reports.append(storm(range(first, first + BATCH), jobs=len(os.sched_getaffinity(0)), tell=_say_nothing))
    return reports


def _say_nothing(progress: str) -> None:
    """The benchmark has its own output."""
    del progress


SIMULATED_ORPHANS = Measurement((SIMULATED,), measure)
