"""The fleet of somebody who knows the whole trace: at every moment what is needed then, started in time, and no longer kept.

A node whose next use is nearer than its start-up time is kept, for starting another one costs more: that is the cheapest way
to have so many nodes at each moment. How many that must be is tried out, from few to many.
"""

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.seen import Role
from twostep.autoscaler.simulation.fleet import Fleet, NodeModel, Outcome
from twostep.autoscaler.simulation.trace import TraceRequest

SLOT_S = 15.0
STEPS = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
"""What is tried: so many times the mean of each slot and its neighbours."""


@dataclass(frozen=True, slots=True)
class Load:
    """Nodes that would be busy on average in each slot, were there always enough."""

    prefill: Sequence[float]
    decode: Sequence[float]

    def of(self, role: Role) -> Sequence[float]:
        return self.prefill if role == "prefill" else self.decode


class Scheduled:
    """Has what a timetable says: `nodes[slot]`, and each new node created one start-up before."""

    interval_s = SLOT_S

    def __init__(self, prefill: Sequence[int], decode: Sequence[int]) -> None:
        self._prefill = prefill
        self._decode = decode

    def decide(self, fleet: Fleet) -> NodeCount:
        slot = min(len(self._prefill) - 1, round(fleet.now_s / SLOT_S))
        return NodeCount(self._prefill[slot], self._decode[slot])


def load_of(trace: Sequence[TraceRequest], model: NodeModel) -> Load:
    """Return what the trace keeps busy: prompts from their arrival on, answers and their KV for as long as they take."""
    num_slots = math.ceil(trace[-1].at_s / SLOT_S) + 1
    prefill, decode = [0.0] * num_slots, [0.0] * num_slots
    mean_kv = sum(one.prompt_tokens + one.output_tokens for one in trace) / len(trace)
    batch = min(model.kv_tokens / mean_kv, 1e6)
    for one in trace:
        compute_s = one.prompt_tokens / model.prefill_tokens_per_s
        _occupy(prefill, one.at_s, compute_s, 1.0)
        share = (one.prompt_tokens + one.output_tokens) / model.kv_tokens
        _occupy(decode, one.at_s, compute_s + one.output_tokens * model.step.at(batch), share)
    return Load(_smooth(prefill), _smooth(decode))


def timetable(load: Sequence[float], factor: float, startup_s: float) -> list[int]:
    """Return how many nodes are to be asked for in each slot so that `factor` times the load is ready in it."""
    needed = [max(1, math.ceil(factor * one)) for one in load]
    early = math.ceil(startup_s / SLOT_S)
    asked = [0] * len(needed)
    for level in range(1, max(needed) + 1):
        for first, end in _kept(needed, level, early):
            for slot in range(max(0, first - early), end):
                asked[slot] = max(asked[slot], level)
    return asked


def best(
    trace: Sequence[TraceRequest],
    model: NodeModel,
    startup_s: float,
    *,
    ttft_s: float,
    tpot_s: float,
    attainment: float,
    from_s: float,
) -> Outcome:
    """Return the cheapest fleet of this kind that serves `attainment` of the requests in time.

    Decode is tried first, with prefill in plenty; then prefill, with what decode needs and with a little more.
    """
    load = load_of(trace, model)

    def run(prefill: float, decode: float) -> Outcome:
        tables = timetable(load.prefill, prefill, startup_s), timetable(load.decode, decode, startup_s)
        first = NodeCount(tables[0][0], tables[1][0])
        return Fleet(trace, model, startup_s, first).run(Scheduled(*tables), ttft_s, tpot_s, from_s=from_s)

    def is_enough(outcome: Outcome) -> bool:
        return outcome.attainment >= attainment

    def suffices(decode: float, prefill: float) -> bool:
        return is_enough(run(prefill, decode))

    decode = _first(lambda factor: suffices(factor, STEPS[-1]))
    found = []
    for more in STEPS[decode : decode + 2]:
        prefill = _first(partial(suffices, more))
        found.append(run(STEPS[min(prefill, len(STEPS) - 1)], more))
    return min(found, key=lambda one: (not is_enough(one), one.node_s))


def _first(is_enough: Callable[[float], bool]) -> int:
    """Return the place of the smallest step that is enough."""
    return bisect.bisect_left(STEPS, True, key=is_enough)


def _kept(needed: Sequence[int], level: int, early: int) -> Iterator[tuple[int, int]]:
    """Yield from which slot to before which one a node of this level is used, gaps of no more than a start-up included."""
    used = [slot for slot, nodes in enumerate(needed) if nodes >= level]
    first = used[0]
    for before, slot in zip(used, [*used[1:], math.inf], strict=True):
        if slot - before - 1 > early:
            yield first, before + 1
            first = int(slot) if math.isfinite(slot) else before


def _occupy(slots: list[float], from_s: float, duration_s: float, weight: float) -> None:
    slot, at_s, end_s = int(from_s / SLOT_S), from_s, from_s + duration_s
    while at_s < end_s and slot < len(slots):
        until_s = min(end_s, (slot + 1) * SLOT_S)
        slots[slot] += weight * (until_s - at_s) / SLOT_S
        slot, at_s = slot + 1, until_s


def _smooth(slots: Sequence[float]) -> list[float]:
    return [sum(slots[max(0, slot - 1) : slot + 2]) / len(slots[max(0, slot - 1) : slot + 2]) for slot in range(len(slots))]
