"""Fills the rows: the same requests served under each policy, with nodes that start sooner and later."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twostep.autoscaler.config import AutoscalerConfig, PoolConfig, RatesConfig, RoutersConfig, TargetsConfig
from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.simulation.fleet import Fleet, NodeModel, Outcome, Policy
from twostep.autoscaler.simulation.policies import Fixed, Ours
from twostep.autoscaler.simulation.sizing import separate_pools
from twostep.autoscaler.simulation.trace import TraceRequest, denser, read_trace
from twostep.benchmarks.autoscaler_rows.bursty_day import bursty_day
from twostep.benchmarks.autoscaler_rows.clairvoyant import best
from twostep.benchmarks.autoscaler_rows.hpa import MOST, Hpa
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured, Unmeasured

STARTUPS_S = (30, 120, 300)
WARM_UP_S = 600.0
"""What comes before is served, and counts for nobody: every policy starts with the fleet that is enough all the time."""
NODE = NodeModel(prefill_tokens_per_s=4000.0, step=StepTime(0.055, 0.0006), kv_tokens=47_000, transfer_s=0.02)
"""About an 8-billion-parameter model in bfloat16 on a GPU of 24 GB and 300 GB/s."""
TARGETS = TargetsConfig(ttft_s=4.0, tpot_s=0.1, attainment=0.97)
GPUS_PER_NODE = 1
LOADS = ("trace", "bursty day")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the rows of one load and one start-up time."""

    load: str
    startup_s: int

    @property
    def in_time(self) -> str:
        return f"{self.load}, start-up {self.startup_s} s: requests in time"

    @property
    def cost(self) -> str:
        return f"{self.load}, start-up {self.startup_s} s: GPU-hours"

    @property
    def saved(self) -> str:
        return f"{self.load}, start-up {self.startup_s} s: GPU-hours beside a static peak"

    @property
    def changes(self) -> str:
        return f"{self.load}, start-up {self.startup_s} s: changes an hour"

    @property
    def all(self) -> tuple[str, ...]:
        return self.in_time, self.cost, self.saved, self.changes


def measurements(trace: Path | None) -> list[Measurement]:
    """Return what fills all rows; without a trace it says so."""
    return [_measurement(load, startup_s, trace) for load in LOADS for startup_s in STARTUPS_S]


def _measurement(load: str, startup_s: int, path: Path | None) -> Measurement:
    names = Names(load, startup_s)

    async def measure(effort: Effort) -> Outcomes:
        if path is None:
            return dict.fromkeys(names.all, Unmeasured("there is no trace: give one with --trace FILE"))
        return compare(REQUESTS[load](read_trace(path), effort), names)

    return Measurement(names.all, measure)


def _trace(trace: Sequence[TraceRequest], effort: Effort) -> list[TraceRequest]:
    return denser(trace, effort.pick(4, 1))


def _day(trace: Sequence[TraceRequest], effort: Effort) -> list[TraceRequest]:
    return bursty_day(trace, effort.pick(24, 2))


REQUESTS: dict[str, Callable[[Sequence[TraceRequest], Effort], list[TraceRequest]]] = {"trace": _trace, "bursty day": _day}


def compare(requests: Sequence[TraceRequest], names: Names) -> Outcomes:
    """Serve the requests under each policy. A policy that leaves more than 3 % late is no cheaper for it: see its row."""
    startup_s = float(names.startup_s)
    peak = separate_pools(requests, NODE, TARGETS, from_s=WARM_UP_S)
    first = peak.nodes if peak else NodeCount(1, 1)

    def run(policy: Policy) -> Outcome:
        fleet = Fleet(requests, NODE, startup_s, first)
        return fleet.run(policy, TARGETS.ttft_s, TARGETS.tpot_s, from_s=WARM_UP_S)

    ours, hpa, static = run(Ours(config(startup_s))), run(Hpa()), run(Fixed(first))
    clairvoyant = best(
        requests,
        NODE,
        startup_s,
        ttft_s=TARGETS.ttft_s,
        tpot_s=TARGETS.tpot_s,
        attainment=TARGETS.attainment,
        from_s=WARM_UP_S,
    )
    # Who knows everything may also keep the same fleet all the time.
    best_known = min((clairvoyant, static), key=lambda one: (one.attainment < TARGETS.attainment, one.node_s))
    told = f"clairvoyant {best_known.attainment:.1%} in time, HPA {hpa.node_hours * GPUS_PER_NODE:.1f} h"
    return {
        names.in_time: Measured((100 * ours.attainment,), (100 * hpa.attainment,)),
        names.cost: Measured((ours.node_hours * GPUS_PER_NODE,), (best_known.node_hours * GPUS_PER_NODE,), note=told),
        names.saved: Measured((ours.node_hours * GPUS_PER_NODE,), (static.node_hours * GPUS_PER_NODE,)),
        names.changes: Measured((ours.changes_per_hour,), (hpa.changes_per_hour,)),
    }


def config(startup_s: float) -> AutoscalerConfig:
    """Return the defaults, told beforehand what a node does: all else it learns while it serves."""
    return AutoscalerConfig(
        prefill=PoolConfig(name="prefill", selector="role=prefill", max_nodes=MOST),
        decode=PoolConfig(name="decode", selector="role=decode", max_nodes=MOST),
        routers=RoutersConfig(selector="role=router"),
        targets=TARGETS,
        rates=RatesConfig(
            prefill_tokens_per_s=NODE.prefill_tokens_per_s,
            decode_step_s=NODE.step.base_s,
            decode_sequence_s=NODE.step.sequence_s,
            startup_s=startup_s,
        ),
    )
