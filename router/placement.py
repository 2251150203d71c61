"""Decides which pair of nodes serves a request, and says why when it is not a pair."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from twostep.core.errors import NoReadyNode
from twostep.core.ids import NodeRef
from twostep.router.node_view import NodeView


class Bypass(enum.StrEnum):
    """Why a decode node serves alone."""

    NO_PREFILL_NODE = "no_prefill_node"
    NO_PROVEN_PAIR = "no_proven_pair"


@dataclass(frozen=True, slots=True)
class Avoid:
    """Mismatched pairs are always avoided; nodes and doubtful pairs, which failed this request, while there are others."""

    nodes: frozenset[NodeRef] = frozenset()
    doubtful: frozenset[tuple[NodeRef, NodeRef]] = frozenset()
    mismatched: frozenset[tuple[NodeRef, NodeRef]] = frozenset()


AVOID_NOTHING = Avoid()


@dataclass(frozen=True, slots=True)
class Placement:
    """A prefill and a decode node; or a decode node alone, with the reason."""

    decode: NodeView
    prefill: NodeView | None
    bypass: Bypass | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes that are ready now."""

    prefill: Sequence[NodeView] = field(default=())
    decode: Sequence[NodeView] = field(default=())


def choose_pair(
    pool: Pool, *, allow_decode_alone: bool, keep: NodeRef | None = None, avoid: Avoid = AVOID_NOTHING
) -> Placement:
    """Return the least loaded proven pair, or the least loaded decode node alone where that is allowed.

    `keep` names the decode node that holds a reservation already: it is preferred to any other. Raises NoReadyNode.
    """
    if not pool.decode:
        raise NoReadyNode("no decode node is ready", retry_after_s=1.0)
    pairs = [(p, d) for d in pool.decode for p in pool.prefill if _may_pair(p, d, avoid)]
    if pairs:
        prefill, decode = min(pairs, key=lambda pair: _cost(pair[0], pair[1], keep, avoid))
        return Placement(decode, prefill)
    bypass = Bypass.NO_PROVEN_PAIR if pool.prefill else Bypass.NO_PREFILL_NODE
    if not allow_decode_alone:
        raise NoReadyNode(f"no prefill node can serve: {bypass.replace('_', ' ')}", retry_after_s=1.0)
    alone = min(pool.decode, key=lambda node: (node.ref != keep, node.ref in avoid.nodes, node.load, node.ref.id))
    return Placement(alone, None, bypass)


def _may_pair(prefill: NodeView, decode: NodeView, avoid: Avoid) -> bool:
    return decode.ref in prefill.proven and (prefill.ref, decode.ref) not in avoid.mismatched


def _cost(prefill: NodeView, decode: NodeView, keep: NodeRef | None, avoid: Avoid) -> tuple[int, bool, int, int, str, str]:
    is_doubtful = (prefill.ref, decode.ref) in avoid.doubtful
    num_avoided = (prefill.ref in avoid.nodes) + (decode.ref in avoid.nodes) + is_doubtful
    return num_avoided, decode.ref != keep, prefill.load, decode.load, prefill.ref.id, decode.ref.id
