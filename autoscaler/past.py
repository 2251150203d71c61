"""What the autoscaler remembers from one look to the next: bounded, and made anew at each step. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from twostep.autoscaler.config import RatesConfig
from twostep.autoscaler.demand import Load, Traits, is_asked, learn_traits, load_between
from twostep.autoscaler.rates import Rates, learn_rates
from twostep.autoscaler.seen import Phase, Pool, Role, Seen

HOUR_S = 3600.0
TRAITS_S = 600.0
"""How long it takes until what has been seen counts a third."""
HOLDING_S = 180.0
"""The same for how long KV is held, which changes with what is asked."""
KEPT_STARTUPS = 16


@dataclass(frozen=True, slots=True)
class Ceiling:
    """No more nodes than `nodes` before `until_s`: no machine had room."""

    nodes: int
    until_s: float


@dataclass(frozen=True, slots=True)
class NodeCount:
    prefill: int
    decode: int

    def of(self, role: Role) -> int:
        return self.prefill if role == "prefill" else self.decode


@dataclass(frozen=True, slots=True)
class Past:
    """`needs` are how many nodes were needed at earlier times; `changes` when a pool was changed."""

    last: Seen | None = None
    loads: Sequence[Load] = ()
    traits: Traits = field(default_factory=Traits)
    rates: Rates = field(default_factory=Rates)
    startups: Mapping[Role, Mapping[str, float]] = field(default_factory=dict)
    needs: Sequence[tuple[float, NodeCount]] = ()
    changes: Sequence[float] = ()
    ceilings: Mapping[Role, Ceiling] = field(default_factory=dict)
    asked_at_s: float = 0.0
    is_woken: bool = False
    """Whether anybody has asked since the last look, or waits."""

    def startup_s(self, role: Role, config: RatesConfig) -> float:
        """Return how long a node of the pool takes until it is ready: the middle of the last ones."""
        seen = self.startups.get(role)
        return median(seen.values()) if seen else config.startup_s


def learn(past: Past, seen: Seen) -> Past:
    """Return the past with what has been seen now. What was not heard changes nothing."""
    last = past.last
    startups: Mapping[Role, Mapping[str, float]] = {
        "prefill": _startups(past.startups.get("prefill", {}), seen.prefill),
        "decode": _startups(past.startups.get("decode", {}), seen.decode),
    }
    if last is None:
        return replace(past, last=seen, startups=startups, asked_at_s=seen.at_s, is_woken=is_asked(seen, seen))
    load, is_woken = load_between(last, seen), is_asked(last, seen)
    passed_s = max(0.0, seen.at_s - last.at_s)
    fade = math.exp(-passed_s / TRAITS_S)
    return replace(
        past,
        last=seen,
        loads=[*(one for one in past.loads if one.at_s > seen.at_s - HOUR_S), *([load] if load else ())],
        traits=learn_traits(past.traits, last, seen, fade=fade),
        rates=learn_rates(past.rates, last, seen, fade=fade, soon=math.exp(-passed_s / HOLDING_S)),
        startups=startups,
        changes=[at_s for at_s in past.changes if at_s > seen.at_s - HOUR_S],
        ceilings={role: one for role, one in past.ceilings.items() if one.until_s > seen.at_s},
        asked_at_s=seen.at_s if is_woken or is_busy(seen) else past.asked_at_s,
        is_woken=is_woken,
    )


def is_busy(seen: Seen) -> bool:
    """Whether any node still has something to do."""
    nodes = [*seen.prefill.counters.values(), *seen.decode.counters.values()]
    return any(node.num_running or node.num_waiting or node.queued_tokens for node in nodes)


def _startups(known: Mapping[str, float], pool: Pool) -> Mapping[str, float]:
    """Return the last start-ups by pod. How long one took is taken from its first time of being ready."""
    new = {pod.uid: pod.startup_s for pod in pool.of(Phase.READY) if pod.startup_s is not None and pod.uid not in known}
    return dict([*known.items(), *new.items()][-KEPT_STARTUPS:])
