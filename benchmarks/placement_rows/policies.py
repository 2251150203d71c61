"""How the nodes of a replay are chosen: by the router's own placer, or as simpler routers choose."""

from collections.abc import Callable
from itertools import count

from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.placement.choose import AVOID_NOTHING, Placement
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import NodeView, Typical
from twostep.router.placement.placer import Errand, Placer
from twostep.router.placement.prefix_index import PrefixIndex

Place = Callable[[Errand], Placement]
Policy = Callable[[Fleet, PrefixIndex, Placer], Place]


def new_placer(fleet: Fleet, index: PrefixIndex, clock: Callable[[], float], *, has_prefill: bool) -> Placer:
    config = RouterConfig(allow_decode_alone=not has_prefill, decode=("replay:1",))
    return Placer(fleet, index, Typical, config, Metrics(), clock)


def by_seconds(fleet: Fleet, index: PrefixIndex, placer: Placer) -> Place:
    """twostep's own."""
    del fleet, index
    return lambda errand: placer.place(errand, num_accepted=0, keep=None, avoid=AVOID_NOTHING)


def round_robin(fleet: Fleet, index: PrefixIndex, placer: Placer) -> Place:
    """One after the other."""
    del index, placer
    turns = count()

    def place(errand: Errand) -> Placement:
        turn = next(turns)
        return _at(errand, fleet, lambda nodes: sorted(nodes, key=_name)[turn % len(nodes)])

    return place


def least_loaded(fleet: Fleet, index: PrefixIndex, placer: Placer) -> Place:
    """The node with the fewest requests."""
    del index, placer
    return lambda errand: _at(errand, fleet, lambda nodes: min(nodes, key=lambda node: (node.load, _name(node))))


def prefix_only(fleet: Fleet, index: PrefixIndex, placer: Placer) -> Place:
    """The node that holds most of the prompt, of equal ones that with the fewest requests."""
    del placer

    def place(errand: Errand) -> Placement:
        hits = index.match(errand.prompt, now=0.0)
        return _at(errand, fleet, lambda nodes: min(nodes, key=lambda node: (-hits.tokens(node.ref), node.load, _name(node))))

    return place


POLICIES: dict[str, Policy] = {
    "twostep": by_seconds,
    "round robin": round_robin,
    "least loaded": least_loaded,
    "prefix only": prefix_only,
}


def _at(errand: Errand, fleet: Fleet, pick: Callable[[list[NodeView]], NodeView]) -> Placement:
    prefill, decode = list(fleet.prefill), list(fleet.decode)
    return Placement(pick(decode), pick(prefill) if prefill else None, num_tokens=len(errand.request.prompt))


def _name(node: NodeView) -> str:
    return node.ref.id
