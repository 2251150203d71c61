"""Fits what two pools want into what there is, so that neither starves the other. Pure."""

from dataclasses import dataclass

from twostep.autoscaler.past import NodeCount


@dataclass(frozen=True, slots=True)
class Limits:
    """`least` and `most` nodes of each pool; `max_gpus` for both together, of which a node takes `gpus`."""

    least: NodeCount
    most: NodeCount
    gpus: NodeCount
    max_gpus: int | None = None

    def cost(self, nodes: NodeCount) -> int:
        return nodes.prefill * self.gpus.prefill + nodes.decode * self.gpus.decode

    def allow(self, nodes: NodeCount) -> bool:
        within = nodes.prefill <= self.most.prefill and nodes.decode <= self.most.decode
        return within and (self.max_gpus is None or self.cost(nodes) <= self.max_gpus)


def balance(wanted: NodeCount, limits: Limits) -> NodeCount:
    """Return as many nodes as are wanted, or as there can be: then both pools have about the same share of what they want.

    One pool gets no more than the other can use: where prefill can have half of its nodes, half of decode's are enough.
    """
    wanted = NodeCount(max(wanted.prefill, limits.least.prefill), max(wanted.decode, limits.least.decode))
    nodes = limits.least
    while nodes != wanted:
        for grown in _next(nodes, wanted):
            if limits.allow(grown):
                nodes = grown
                break
        else:
            return nodes
        if _is_limited(nodes, wanted, limits):
            return nodes
    return nodes


def _next(nodes: NodeCount, wanted: NodeCount) -> list[NodeCount]:
    """Return what could come next, the pool first that has the smaller share of what it wants."""
    more_prefill = NodeCount(nodes.prefill + 1, nodes.decode)
    more_decode = NodeCount(nodes.prefill, nodes.decode + 1)
    shares = _share(nodes.prefill, wanted.prefill), _share(nodes.decode, wanted.decode)
    grown = [more_prefill, more_decode] if shares[0] <= shares[1] else [more_decode, more_prefill]
    return [one for one in grown if one.prefill <= wanted.prefill and one.decode <= wanted.decode]


def _is_limited(nodes: NodeCount, wanted: NodeCount, limits: Limits) -> bool:
    """Whether a pool that cannot grow has no larger share than the other one, which then has enough."""
    prefill, decode = _share(nodes.prefill, wanted.prefill), _share(nodes.decode, wanted.decode)
    stuck_prefill = nodes.prefill < wanted.prefill and not limits.allow(NodeCount(nodes.prefill + 1, nodes.decode))
    stuck_decode = nodes.decode < wanted.decode and not limits.allow(NodeCount(nodes.prefill, nodes.decode + 1))
    return (stuck_prefill and decode >= prefill) or (stuck_decode and prefill >= decode)


def _share(nodes: int, wanted: int) -> float:
    return nodes / wanted if wanted else 1.0
