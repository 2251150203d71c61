"""Decides which nodes serve a request, by the seconds that it is expected to take and to cost others, and says why. Pure."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from twostep.core.errors import NoReadyNode
from twostep.core.ids import NodeRef
from twostep.router.placement.node_load import Work
from twostep.router.placement.node_view import UNMEASURED_BYTES_PER_S, NodeView
from twostep.router.placement.prefix_index import NO_HITS, Hits

T = TypeVar("T")
Pair = tuple[NodeView, NodeView]
SAME_S = 1e-4
"""Costs that differ by less count as equal: then the nearer pair, and the one with fewer requests, is taken."""


class Bypass(enum.StrEnum):
    """Why a decode node serves alone."""

    NO_PREFILL_NODE = "no_prefill_node"
    NO_PROVEN_PAIR = "no_proven_pair"
    CHEAPER = "cheaper"
    """Both nodes have measured what the prompt takes, and handing it over would cost more than it saves."""


@dataclass(frozen=True, slots=True)
class Avoid:
    """Mismatched pairs are always avoided; nodes and doubtful pairs, which failed this request, while there are others.

    `nodes` says how often each has failed it: where all have, those that did so least come first.
    """

    nodes: Mapping[NodeRef, int] = field(default_factory=dict)
    doubtful: frozenset[tuple[NodeRef, NodeRef]] = frozenset()
    mismatched: frozenset[tuple[NodeRef, NodeRef]] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.nodes or self.doubtful or self.mismatched)

    def forbids(self, prefill: NodeRef, decode: NodeRef) -> bool:
        """Return whether there is anything against a pair."""
        pair = (prefill, decode)
        return prefill in self.nodes or decode in self.nodes or pair in self.doubtful or pair in self.mismatched

    def num_avoided(self, prefill: NodeRef, decode: NodeRef) -> int:
        """Return how many reasons there are against a pair that may be formed."""
        return self.nodes.get(prefill, 0) + self.nodes.get(decode, 0) + ((prefill, decode) in self.doubtful)


AVOID_NOTHING = Avoid()


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a request: tokens to compute or find, tokens of the answer, seconds a handoff takes beside the work.

    `spread_s`: a node whose queue is longer than others' by more is not preferred for the prefix it holds, lest everybody waits
    for the same one.
    """

    num_tokens: int
    output_tokens: float
    pair_overhead_s: float = 0.0
    alone_overhead_s: float = 0.0
    spread_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is weighed: pairs between which bytes have moved, and decode nodes that may serve alone; and how many are ready."""

    pairs: Sequence[Pair] = ()
    alone: Sequence[NodeView] = ()
    num_prefill: int = 0
    num_decode: int = 0
    hits: Hits = field(default=NO_HITS)
    session: frozenset[NodeRef] = frozenset()
    """The nodes of an earlier request of the same session: a hint, no more."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, by what takes them.

    `queue` is what is ahead at the node that computes; `prefill` what it does not find in its cache; `transfer` what of the
    missing KV's way is not hidden behind that; `overhead` the handoff beside it. `room` is until the decode node has memory;
    `decode` the answer's steps, and what they cost the answers that run there; `stall` what a prompt costs those, where the
    decode node computes it itself.
    """

    queue: float
    prefill: float
    transfer: float
    overhead: float
    room: float
    decode: float
    stall: float = 0.0

    @property
    def ttft(self) -> float:
        return max(self.queue, self.room) + self.prefill + self.transfer + self.overhead

    @property
    def total(self) -> float:
        return self.ttft + self.decode + self.stall


@dataclass(frozen=True, slots=True)
class Placement:
    """A prefill and a decode node; or a decode node alone, with the reason.

    `cost` is what the choice is expected to take, `alone_cost` what a decode node alone would have: the best one where they may
    serve alone, else the chosen one. `cached_tokens` is the prefix that the computing node is expected to hold,
    `decode_cached_tokens` the decode node's.
    """

    decode: NodeView
    prefill: NodeView | None
    bypass: Bypass | None = None
    cost: Cost | None = None
    alone_cost: Cost | None = None
    cached_tokens: int = 0
    decode_cached_tokens: int = 0
    num_tokens: int = 0

    @property
    def prefill_work(self) -> Work:
        """What is asked of the prefill node."""
        return Work(self.num_tokens - self.cached_tokens, self.cost.prefill if self.cost else 0.0)

    @property
    def decode_work(self) -> Work:
        """What is asked of the decode node: memory and, where it serves alone, the prompt too."""
        missing = self.num_tokens - self.decode_cached_tokens
        blocks = -(-missing // self.decode.description.geometry.block_tokens) + 1
        return Work(blocks=blocks) if self.prefill else Work(missing, self.cost.prefill if self.cost else 0.0, blocks)


def choose(
    candidates: Candidates, expected: Expected, *, now: float, keep: NodeRef | None = None, avoid: Avoid = AVOID_NOTHING
) -> Placement:
    """Return the cheapest proven pair, or a decode node alone where that is cheaper by measured rates, or nothing else is left.

    `keep` names the decode node that holds a reservation already: it is preferred to any other. Raises NoReadyNode.
    """
    weigh = _Weigher(candidates, expected, now)
    pairs = _least_avoided([pair for pair in candidates.pairs if _may_be(pair, avoid)], keep, avoid)
    alone = _preferred(candidates.alone, keep, avoid)
    pair = _cheapest(pairs, weigh.pair_s, lambda pair: _among_equal_pairs(pair, candidates.session)) if pairs else None
    single = _cheapest(alone, weigh.alone_s, lambda node: _among_equals(node, candidates.session)) if alone else None
    if pair is None and single is None:
        raise NoReadyNode(_why_none(candidates), retry_after_s=1.0)
    alone_cost = weigh.alone_cost(single) if single else None
    if single and alone_cost and (pair is None or _is_cheaper(single, alone_cost, pair, weigh.pair_cost(pair))):
        hit, bypass = weigh.hits.tokens(single.ref), _bypass(pair, candidates)
        return Placement(single, None, bypass, alone_cost, alone_cost, hit, hit, expected.num_tokens)
    assert pair is not None
    prefill, decode = pair
    return Placement(
        decode,
        prefill,
        cost=weigh.pair_cost(pair),
        alone_cost=alone_cost or weigh.alone_cost(decode),
        cached_tokens=weigh.hits.tokens(prefill.ref),
        decode_cached_tokens=weigh.hits.tokens(decode.ref),
        num_tokens=expected.num_tokens,
    )


def _may_be(pair: Pair, avoid: Avoid) -> bool:
    return not avoid.mismatched or (pair[0].ref, pair[1].ref) not in avoid.mismatched


def _least_avoided(pairs: list[Pair], keep: NodeRef | None, avoid: Avoid) -> list[Pair]:
    """Return the pairs against which there is least; of those, the ones with the decode node to keep."""
    if avoid.nodes or avoid.doubtful:
        reasons = [avoid.num_avoided(prefill.ref, decode.ref) for prefill, decode in pairs]
        pairs = [pair for pair, count in zip(pairs, reasons, strict=True) if count == min(reasons)]
    kept = [pair for pair in pairs if pair[1].ref == keep] if keep else []
    return kept or pairs


def _preferred(nodes: Sequence[NodeView], keep: NodeRef | None, avoid: Avoid) -> Sequence[NodeView]:
    kept = [node for node in nodes if node.ref == keep] if keep else []
    least = min((avoid.nodes.get(node.ref, 0) for node in nodes), default=0)
    return kept or [node for node in nodes if avoid.nodes.get(node.ref, 0) == least]


def _cheapest(items: Sequence[T], seconds: Callable[[T], float], rank: Callable[[T], tuple[Any, ...]]) -> T:
    """Return the item that takes least; of those that take hardly more, the one that ranks first."""
    costs = list(map(seconds, items))
    limit = min(costs) + SAME_S
    close = [item for item, cost in zip(items, costs, strict=True) if cost <= limit]
    return close[0] if len(close) == 1 else min(close, key=rank)


def _among_equal_pairs(pair: Pair, session: frozenset[NodeRef]) -> tuple[Any, ...]:
    prefill, decode = pair
    load = prefill.load + decode.load
    return prefill.ref not in session, distance(prefill, decode), load, prefill.ref.id, decode.ref.id


def _among_equals(node: NodeView, session: frozenset[NodeRef]) -> tuple[Any, ...]:
    return node.ref not in session, node.load, node.ref.id


class _Weigher:
    """Weighs the candidates for one request; what is the same for all pairs of a node is found out once."""

    def __init__(self, candidates: Candidates, expected: Expected, now: float) -> None:
        self.hits = candidates.hits
        self._expected = expected
        self._now = now
        computing = [*(prefill for prefill, _ in candidates.pairs), *candidates.alone]
        self._free_at = min((node.free_at for node in computing), default=now)
        """When the first of all will have nothing ahead."""
        self._computing_at: dict[int, _Computing] = {}
        self._decoding_at: dict[int, _Decoding] = {}

    def pair_s(self, pair: Pair) -> float:
        """Return what a pair is ranked by: its cost, without credit for a prefix that everybody waits for."""
        prefill, decode = pair
        queue_s, prefill_s, credited_s = self._computing_at.get(id(prefill)) or self._computing(prefill)
        missing, room_s, decode_s = self._decoding_at.get(id(decode)) or self._decoding(decode)
        transfer_s = _exposed_s(missing, prefill_s, prefill, decode)
        return (queue_s if queue_s > room_s else room_s) + credited_s + transfer_s + decode_s

    def alone_s(self, node: NodeView) -> float:
        """The same of a decode node alone."""
        computing, decoding = self._computing(node), self._decoding(node)
        stall_s = computing.prefill_s * node.load
        return max(computing.queue_s, decoding.room_s) + computing.credited_s + decoding.decode_s + stall_s

    def pair_cost(self, pair: Pair) -> Cost:
        prefill, decode = pair
        computing, decoding = self._computing(prefill), self._decoding(decode)
        return Cost(
            queue=computing.queue_s,
            prefill=computing.prefill_s,
            transfer=_exposed_s(decoding.missing, computing.prefill_s, prefill, decode),
            overhead=self._expected.pair_overhead_s,
            room=decoding.room_s,
            decode=decoding.decode_s,
        )

    def alone_cost(self, node: NodeView) -> Cost:
        computing, decoding = self._computing(node), self._decoding(node)
        return Cost(
            queue=computing.queue_s,
            prefill=computing.prefill_s,
            transfer=0.0,
            overhead=self._expected.alone_overhead_s,
            room=decoding.room_s,
            decode=decoding.decode_s,
            stall=computing.prefill_s * node.load,
        )

    def _computing(self, node: NodeView) -> "_Computing":
        known = self._computing_at.get(id(node))
        if known is None:
            num_tokens, hit = self._expected.num_tokens, self.hits.tokens(node.ref)
            queue_s, prefill_s = node.queue_s(self._now), node.curve.prefill_s(hit, num_tokens)
            is_hot = node.free_at - max(self._now, self._free_at) > self._expected.spread_s
            credited_s = node.curve.prefill_s(0, num_tokens) if is_hot else prefill_s
            known = self._computing_at[id(node)] = _Computing(queue_s, prefill_s, credited_s)
        return known

    def _decoding(self, node: NodeView) -> "_Decoding":
        known = self._decoding_at.get(id(node))
        if known is None:
            missing = self._expected.num_tokens - self.hits.tokens(node.ref)
            room_s = node.memory.wait_s(-(-missing // node.description.geometry.block_tokens) + 1)
            decode_s = self._expected.output_tokens * node.answer_step_s
            known = self._decoding_at[id(node)] = _Decoding(missing, room_s, decode_s)
        return known


class _Computing(NamedTuple):
    """A node that computes the prompt. `credited_s` leaves out a prefix that everybody waits for already."""

    queue_s: float
    prefill_s: float
    credited_s: float


class _Decoding(NamedTuple):
    """A node that decodes: the tokens it lacks, and the seconds that memory and the answer take."""

    missing: int
    room_s: float
    decode_s: float


def _exposed_s(missing: int, prefill_s: float, prefill: NodeView, decode: NodeView) -> float:
    """Return what of the transfer is not hidden: it runs while P computes, except for the last layer group of what is last."""
    description = prefill.description
    bytes_per_s = prefill.paths.get(decode.ref) or UNMEASURED_BYTES_PER_S
    transfer_s = missing * description.token_bytes / bytes_per_s
    return max(transfer_s * description.last_share, transfer_s - prefill_s)


def _is_cheaper(alone: NodeView, alone_cost: Cost, pair: Pair, pair_cost: Cost) -> bool:
    """Say so only of what was measured: on the node itself or, before it has computed a prompt, on one that computes alike."""
    prefill = pair[0]
    computes_alike = alone.description.kernels == prefill.description.kernels
    is_known = prefill.is_measured and (alone.is_measured or computes_alike)
    return is_known and alone_cost.total + SAME_S < pair_cost.total


def _bypass(pair: Pair | None, candidates: Candidates) -> Bypass:
    if pair:
        return Bypass.CHEAPER
    return Bypass.NO_PROVEN_PAIR if candidates.num_prefill else Bypass.NO_PREFILL_NODE


def _why_none(candidates: Candidates) -> str:
    if not candidates.num_decode:
        return "no decode node is ready"
    bypass = _bypass(None, candidates)
    return f"no prefill node can serve: {bypass.replace('_', ' ')}"


def distance(one: NodeView, other: NodeView) -> int:
    """Return 0 on one machine, 1 in one zone, else 2; what is unknown is far."""
    (zone, host), (other_zone, other_host) = one.place, other.place
    if host and host == other_host:
        return 0
    return 1 if zone and zone == other_zone else 2
