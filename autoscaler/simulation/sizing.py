"""How many nodes a trace needs: the smallest fleets that serve it in time, with separate pools and with nodes that do both."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from twostep.autoscaler.config import TargetsConfig
from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.simulation.fleet import Fleet, NodeModel, Outcome
from twostep.autoscaler.simulation.policies import Fixed
from twostep.autoscaler.simulation.together import Together
from twostep.autoscaler.simulation.trace import TraceRequest

MOST_NODES = 1024
DECODE_MORE = 2
"""So many more decode nodes are tried than are needed at least: they may save prefill nodes."""


@dataclass(frozen=True, slots=True)
class Separate:
    nodes: NodeCount
    attainment: float

    @property
    def total(self) -> int:
        return self.nodes.prefill + self.nodes.decode


@dataclass(frozen=True, slots=True)
class Whole:
    nodes: int
    attainment: float


def separate_pools(
    trace: Sequence[TraceRequest], model: NodeModel, targets: TargetsConfig, *, from_s: float = 0.0
) -> Separate | None:
    """Return the smallest pair of pools that is enough all the time; None when none is."""

    def run(prefill: int, decode: int) -> Outcome:
        nodes = NodeCount(prefill, decode)
        return Fleet(trace, model, 0.0, nodes).run(Fixed(nodes), targets.ttft_s, targets.tpot_s, from_s=from_s)

    def attainment(decode: int, prefill: int) -> float:
        return run(prefill, decode).attainment

    plenty = _enough(lambda nodes: attainment(nodes, nodes), targets.attainment)
    if plenty is None:
        return None
    least = _least(lambda decode: attainment(decode, plenty), targets.attainment, plenty)
    found = []
    for decode in range(least, min(plenty, least + DECODE_MORE) + 1):
        prefill = _least(partial(attainment, decode), targets.attainment, plenty)
        found.append(Separate(NodeCount(prefill, decode), run(prefill, decode).attainment))
    return min(found, key=lambda one: (one.total, -one.attainment))


def nodes_that_do_both(trace: Sequence[TraceRequest], model: NodeModel, targets: TargetsConfig) -> Whole | None:
    """Return the fewest nodes that are enough when each does both; None when none are."""

    def attainment(nodes: int) -> float:
        return Together(trace, model, nodes, targets.tpot_s).run(targets.ttft_s, targets.tpot_s).attainment

    plenty = _enough(attainment, targets.attainment)
    if plenty is None:
        return None
    nodes = _least(attainment, targets.attainment, plenty)
    return Whole(nodes, attainment(nodes))


def _enough(attainment: Callable[[int], float], target: float) -> int | None:
    nodes = 2
    while attainment(nodes) < target:
        nodes *= 2
        if nodes > MOST_NODES:
            return None
    return nodes


def _least(attainment: Callable[[int], float], target: float, enough: int) -> int:
    """Return the smallest number that reaches the target; `enough` does."""
    return bisect.bisect_left(range(1, enough), target, key=attainment) + 1
