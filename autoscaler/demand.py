"""How much is asked: rates of arrival between two looks at the routers' counters. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twostep.autoscaler.seen import NodeCounters, RouterCounters, Seen


@dataclass(frozen=True, slots=True)
class Load:
    """What arrived in the `duration_s` before `at_s`."""

    at_s: float
    duration_s: float
    requests: float
    prompt_tokens: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.duration_s

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / self.duration_s


@dataclass(frozen=True, slots=True)
class Traits:
    """What requests have been like lately: sums that fade, so that quotients of them are averages.

    `sizes` counts requests by their prompt's upper bound in tokens, each bound's own, not cumulative.
    """

    computed_tokens: float = 0.0
    cached_tokens: float = 0.0
    answers: float = 0.0
    output_tokens: float = 0.0
    sizes: Mapping[float, float] = field(default_factory=dict)

    @property
    def uncached_share(self) -> float:
        """Which share of prompt tokens has to be computed; 1 as long as nobody knows."""
        seen = self.computed_tokens + self.cached_tokens
        return self.computed_tokens / seen if seen else 1.0

    @property
    def output_tokens_per_request(self) -> float | None:
        return self.output_tokens / self.answers if self.answers >= 1 else None


def load_between(before: Seen, now: Seen) -> Load | None:
    """Return what arrived between two looks at the same routers; None when no time has passed, or no router is known in both.

    A router that was not heard either time is left out, as is one that is new: what it has counted was before.
    """
    duration_s = now.at_s - before.at_s
    known = [uid for uid in now.routers if uid in before.routers]
    if duration_s <= 0 or not known:
        return None
    pairs = [(before.routers[uid], now.routers[uid]) for uid in known]
    return Load(
        now.at_s,
        duration_s,
        requests=sum(grown(old.requests, new.requests) for old, new in pairs),
        prompt_tokens=sum(grown(old.prompt_tokens, new.prompt_tokens) for old, new in pairs),
    )


def is_asked(before: Seen, now: Seen) -> bool:
    """Whether anybody has asked since `before`, or is waiting."""
    return any(router.waiting or _has_asked(before.routers.get(uid), router) for uid, router in now.routers.items())


def learn_traits(traits: Traits, before: Seen, now: Seen, *, fade: float) -> Traits:
    """Return the traits with what has been seen since `before`; `fade` is what is left of older sums, 0 to 1."""
    routers = [(before.routers[uid], new) for uid, new in now.routers.items() if uid in before.routers]
    nodes = grown_nodes(before.prefill.counters, now.prefill.counters)
    bounds = {bound for _, new in routers for bound in new.sizes}
    return Traits(
        computed_tokens=fade * traits.computed_tokens + sum(node.computed_tokens for node in nodes),
        cached_tokens=fade * traits.cached_tokens + sum(node.cached_tokens for node in nodes),
        answers=fade * traits.answers + sum(grown(old.answers, new.answers) for old, new in routers),
        output_tokens=fade * traits.output_tokens + sum(grown(old.output_tokens, new.output_tokens) for old, new in routers),
        sizes=_own_counts(
            {bound: sum(grown(old.sizes.get(bound, 0.0), new.sizes[bound]) for old, new in routers) for bound in bounds},
            {bound: fade * count for bound, count in traits.sizes.items()},
        ),
    )


def grown(before: float, now: float) -> float:
    """Return by how much a counter has grown; one that is smaller than before has begun anew."""
    return now - before if now >= before else now


def grown_nodes(before: Mapping[str, NodeCounters], now: Mapping[str, NodeCounters]) -> Sequence[NodeCounters]:
    """Return what each node known at both times has done in between; gauges are as they are now."""
    return [_grown_node(before[uid], new) for uid, new in now.items() if uid in before]


def _grown_node(old: NodeCounters, new: NodeCounters) -> NodeCounters:
    return NodeCounters(
        computed_tokens=grown(old.computed_tokens, new.computed_tokens),
        cached_tokens=grown(old.cached_tokens, new.cached_tokens),
        decoded_tokens=grown(old.decoded_tokens, new.decoded_tokens),
        steps=grown(old.steps, new.steps),
        step_s=grown(old.step_s, new.step_s),
        handoff_bytes=grown(old.handoff_bytes, new.handoff_bytes),
        handoffs=grown(old.handoffs, new.handoffs),
        handoff_speed_sum=grown(old.handoff_speed_sum, new.handoff_speed_sum),
        queued_tokens=new.queued_tokens,
        num_running=new.num_running,
        num_waiting=new.num_waiting,
        free_blocks=new.free_blocks,
        total_blocks=new.total_blocks,
    )


def _has_asked(old: RouterCounters | None, new: RouterCounters) -> bool:
    return old is not None and (new.requests, new.turned_away) != (old.requests, old.turned_away)


def _own_counts(cumulative: Mapping[float, float], before: Mapping[float, float]) -> Mapping[float, float]:
    own, below = dict(before), 0.0
    for bound in sorted(cumulative):
        own[bound] = own.get(bound, 0.0) + max(0.0, cumulative[bound] - below)
        below = cumulative[bound]
    return own
