"""Measures the handoff: what it takes beyond the wire, what it hides, and what faults cost. See docs/benchmarks.md."""

import sys
from collections.abc import Mapping

from twostep.benchmarks.cluster.transport_peak import transport_peak
from twostep.benchmarks.handoff_rows.burst import BURST_ROWS
from twostep.benchmarks.handoff_rows.cancel_storm import CANCEL_STORM
from twostep.benchmarks.handoff_rows.digest_cost import DIGEST_COST
from twostep.benchmarks.handoff_rows.faults import STALLS
from twostep.benchmarks.handoff_rows.handover import HANDOVER
from twostep.benchmarks.handoff_rows.one_write import ONE_WRITE
from twostep.benchmarks.handoff_rows.orphans import ORPHANS
from twostep.benchmarks.handoff_rows.reserve import RESERVE_BUSY
from twostep.benchmarks.handoff_rows.sameness import SAMENESS
from twostep.benchmarks.handoff_rows.simulated_orphans import SIMULATED_ORPHANS
from twostep.benchmarks.harness.command import Benchmark, run
from twostep.benchmarks.harness.peaks import memory_peaks
from twostep.benchmarks.harness.rounds import Effort


async def peaks(effort: Effort) -> Mapping[str, float]:
    return {**await memory_peaks(effort), **await transport_peak()}


HANDOFF = Benchmark(
    "handoff",
    peaks,
    [HANDOVER, ONE_WRITE, RESERVE_BUSY, CANCEL_STORM, BURST_ROWS, STALLS, SIMULATED_ORPHANS, ORPHANS, DIGEST_COST, SAMENESS],
)

if __name__ == "__main__":
    sys.exit(run(HANDOFF))
