"""Chooses the pods that go when a pool becomes smaller: those with least to lose. Pure."""

from collections.abc import Mapping

from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool

GOES = -1000
STAYS = 0
"""Deletion costs: of those that are ready, Kubernetes deletes the cheapest first. Pods that are not ready go before them."""


def deletion_costs(pool: Pool, target: int) -> Mapping[str, int]:
    """Return by pod name the deletion costs that have to change so that the right pods go. Those that go come last."""
    ready = pool.of(Phase.READY)
    num_going = max(0, len(ready) - target)
    going = {pod.uid for pod in sorted(ready, key=lambda pod: _loss(pod, pool))[:num_going]}
    wanted = {pod: GOES if pod.uid in going else STAYS for pod in ready}
    changed = [(pod.name, cost) for pod, cost in wanted.items() if pod.deletion_cost != cost]
    return dict(sorted(changed, key=lambda one: -one[1]))


def _loss(pod: Pod, pool: Pool) -> tuple[float, float, float]:
    """Return what would have to be finished or computed again elsewhere: requests, prompts that wait, then its cache.

    A node that tells nothing is taken to have the most.
    """
    node = pool.counters.get(pod.uid)
    if node is None:
        return (float("inf"), 0.0, 0.0)
    return (node.num_running + node.num_waiting, node.queued_tokens, _warmth(node, pod))


def _warmth(node: NodeCounters, pod: Pod) -> float:
    """Return how much its prefix cache is worth: tokens found in it a second."""
    return node.cached_tokens / max(1.0, pod.age_s)
