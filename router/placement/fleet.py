"""The ready nodes, kept in order, so that of ten thousand only a few have to be weighed for a request.

Weighed are those that hold most of the prompt, those with least to do, and whom the request knows already; in a small cluster
all. A change of one node costs a push on a heap, a pick the nodes it looks at.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostep.core.ids import NodeRef
from twostep.router.admission.demand import Capacity
from twostep.router.placement.choose import AVOID_NOTHING, Avoid, Candidates, Pair, distance
from twostep.router.placement.node_view import NodeView
from twostep.router.placement.prefix_index import NO_HITS, Hits

FEW_PAIRS = 64
"""So many pairs are all weighed."""
NUM_DEEPEST = 3
NUM_IDLEST = 3
NUM_PARTNERS = 2
NUM_NEAREST = 1
ABSENT = math.inf
"""How busy a node is that is not there."""

Places = npt.NDArray[np.intp]


class _Ranking:
    """Nodes by how busy they are: a heap whose outdated entries are dropped when they come up, and a place for each node.

    `busy` tells how busy the node at each place is, so that many can be compared at once.
    """

    def __init__(self, measure: Callable[[NodeView], float]) -> None:
        self.views: dict[NodeRef, NodeView] = {}
        self.places: dict[NodeRef, int] = {}
        self.at: list[NodeView | None] = []
        self.busy = np.empty(0)
        self._measure = measure
        self._free: list[int] = []
        self._heap: list[tuple[float, int, int, int]] = []
        self._versions: list[int] = []
        self._num_pushed = 0

    def put(self, view: NodeView) -> None:
        place = self.places.get(view.ref)
        if place is None:
            place = self._new_place(view.ref)
        self.views[view.ref] = self.at[place] = view
        self.busy[place] = busy = self._measure(view)
        self._num_pushed += 1
        self._versions[place] = self._num_pushed
        heapq.heappush(self._heap, (busy, view.load, self._num_pushed, place))
        if len(self._heap) > 4 * len(self.views) + 64:
            self._heap = [entry for entry in self._heap if self._versions[entry[3]] == entry[2]]
            heapq.heapify(self._heap)

    def remove(self, ref: NodeRef) -> None:
        place = self.places.pop(ref)
        del self.views[ref]
        self.at[place], self.busy[place], self._versions[place] = None, ABSENT, 0
        self._free.append(place)

    def idlest(self, limit: int) -> list[NodeView]:
        found: list[tuple[float, int, int, int]] = []
        while self._heap and len(found) < limit:
            entry = heapq.heappop(self._heap)
            if self._versions[entry[3]] == entry[2]:
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [view for entry in found if (view := self.at[entry[3]])]

    def _new_place(self, ref: NodeRef) -> int:
        if self._free:
            place = self._free.pop()
        else:
            place = len(self.at)
            self.at.append(None)
            self._versions.append(0)
            if place == len(self.busy):
                self.busy = np.append(self.busy, np.full(place + 16, ABSENT))
        self.places[ref] = place
        return place


class _Peers(NamedTuple):
    """The places of a prefill node's peers, and of those nearest to it, when so many nodes had come or gone."""

    num_changes: int
    all: Places
    nearest: Places


class Fleet:
    """All nodes that requests may be placed on now. `num_changes` counts who came, went, or became another."""

    def __init__(self) -> None:
        self._prefill = _Ranking(lambda view: view.free_at)
        self._decode = _Ranking(_decode_busy)
        self._peers: dict[NodeRef, _Peers] = {}
        self._kv_tokens = 0
        self._before_pick: dict[Hashable, Callable[[], None]] = {}
        self.num_changes = 0

    @property
    def prefill(self) -> Iterable[NodeView]:
        return self._prefill.views.values()

    @property
    def decode(self) -> Iterable[NodeView]:
        return self._decode.views.values()

    def has_pair(self) -> bool:
        """Return whether there are two nodes between which bytes have moved."""
        return any(True for _ in _all_pairs(self.prefill, self._decode.views))

    def capacity(self) -> Capacity:
        """Return what the nodes have together; without prefill nodes decode nodes compute prompts."""
        num_computing = len(self._prefill.views) or len(self._decode.views)
        return Capacity(num_computing if self._decode.views else 0, self._kv_tokens)

    def put(self, view: NodeView) -> None:
        """Take up a node that is ready, or what has changed about it."""
        ranking = self._prefill if view.description.role == "prefill" else self._decode
        known = ranking.views.get(view.ref)
        if known is None or known.description is not view.description:
            self.num_changes += 1
        if ranking is self._prefill and (known is None or known.paths is not view.paths):
            self._note_peers(view)
        if ranking is self._decode:
            self._kv_tokens += _kv_tokens(view) - (_kv_tokens(known) if known else 0)
        ranking.put(view)

    def before_next_pick(self, node: Hashable, take_up: Callable[[], None]) -> None:
        """Have `take_up` put or remove `node` before it is next weighed: its load changes more often than that."""
        self._before_pick[node] = take_up

    def remove(self, ref: NodeRef) -> None:
        """Place nothing more there."""
        for ranking in (self._prefill, self._decode):
            if known := ranking.views.get(ref):
                self._kv_tokens -= _kv_tokens(known) if ranking is self._decode else 0
                ranking.remove(ref)
                self._peers.pop(ref, None)
                self.num_changes += 1

    def candidates(
        self,
        hits: Hits = NO_HITS,
        *,
        may_be_alone: bool,
        keep: NodeRef | None = None,
        avoid: Avoid = AVOID_NOTHING,
        session: frozenset[NodeRef] = frozenset(),
    ) -> Candidates:
        """Return what is to be weighed for a request with these prefix hits."""
        self._catch_up()
        prefill, decode = self._prefill.views, self._decode.views
        found = Candidates(num_prefill=len(prefill), num_decode=len(decode), hits=hits, session=session)
        if len(prefill) * len(decode) <= FEW_PAIRS and len(decode) <= FEW_PAIRS:
            alone = list(decode.values()) if may_be_alone else []
            return replace(found, pairs=list(_all_pairs(prefill.values(), decode)), alone=alone)
        known = session if keep is None else session | {keep}
        pairs = self._few_pairs(hits, known, avoid) or self._few_pairs(hits, known, AVOID_NOTHING)
        alone = _notable(self._decode, _holders(hits, decode), known, avoid) if may_be_alone else []
        return replace(found, pairs=pairs or list(_all_pairs(prefill.values(), decode)), alone=alone)

    def _catch_up(self) -> None:
        waiting, self._before_pick = self._before_pick, {}
        for take_up in waiting.values():
            take_up()

    def _few_pairs(self, hits: Hits, known: frozenset[NodeRef], avoid: Avoid) -> list[Pair]:
        decode = self._decode.views
        wanted = [*_holders(hits, decode), *(decode[ref] for ref in known if ref in decode)]
        return [
            (prefill, partner)
            for prefill in _notable(self._prefill, _holders(hits, self._prefill.views), known, avoid)
            for partner in self._partners(prefill, wanted, avoid)
        ]

    def _partners(self, prefill: NodeView, wanted: Sequence[NodeView], avoid: Avoid) -> list[NodeView]:
        """Return the few decode nodes that are weighed with one prefill node.

        They are its idlest peers, the idlest of the nearest ones, and those that are wanted.
        """
        peers = self._peers_of(prefill)
        partners = [view for view in wanted if view.ref in prefill.paths]
        for places, limit in ((peers.all, NUM_PARTNERS), (peers.nearest, NUM_NEAREST)):
            partners += (view for view in self._idlest_of(places, limit, prefill, avoid) if not _is_among(view, partners))
        return partners

    def _idlest_of(self, places: Places, limit: int, prefill: NodeView, avoid: Avoid) -> Iterator[NodeView]:
        at = self._decode.at
        if not avoid.is_empty:
            places = _as_places(place for place in places if (one := at[place]) and not avoid.forbids(prefill.ref, one.ref))
        busy = self._decode.busy[places]
        for _ in range(min(limit, len(places))):
            idlest = busy.argmin()
            busy[idlest] = ABSENT
            if view := at[places[idlest]]:
                yield view

    def _peers_of(self, prefill: NodeView) -> _Peers:
        peers = self._peers[prefill.ref]
        return peers if peers.num_changes == self.num_changes else self._note_peers(prefill)

    def _note_peers(self, prefill: NodeView) -> _Peers:
        places = [place for ref in prefill.paths if (place := self._decode.places.get(ref)) is not None]
        distances = [distance(prefill, view) for place in places if (view := self._decode.at[place])]
        nearest = [place for place, far in zip(places, distances, strict=True) if far == min(distances)]
        is_some = len(nearest) < len(places)
        peers = _Peers(self.num_changes, _as_places(places), _as_places(nearest if is_some else ()))
        self._peers[prefill.ref] = peers
        return peers


def _as_places(places: Iterable[int]) -> Places:
    return np.fromiter(places, np.intp)


def _all_pairs(prefill: Iterable[NodeView], decode: Mapping[NodeRef, NodeView]) -> Iterator[Pair]:
    return ((one, decode[ref]) for one in prefill for ref in one.paths if ref in decode)


def _holders(hits: Hits, views: Mapping[NodeRef, NodeView]) -> list[NodeView]:
    """Return the few of one pool that hold most of a prompt."""
    return list(islice((view for ref in hits.deepest if (view := views.get(ref))), NUM_DEEPEST))


def _notable(ranking: _Ranking, holders: Sequence[NodeView], known: frozenset[NodeRef], avoid: Avoid) -> list[NodeView]:
    """Return the nodes of one pool that are worth a look: by their prefix, by their load, or because they are known."""
    found = list(holders)
    more = (view for ref in known if (view := ranking.views.get(ref)))
    for view in chain(ranking.idlest(NUM_IDLEST + len(avoid.nodes)), more):
        if not _is_among(view, found):
            found.append(view)
    return [view for view in found if view.ref not in avoid.nodes] if avoid.nodes else found


def _is_among(view: NodeView, found: Sequence[NodeView]) -> bool:
    # To compare two views by what they say would take longer.
    return id(view) in map(id, found)


def _kv_tokens(view: NodeView) -> int:
    return view.memory.total * view.description.geometry.block_tokens


def _decode_busy(view: NodeView) -> float:
    return view.answer_step_s + view.memory.wait_s(1)
