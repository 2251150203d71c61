"""Of many nodes few are weighed, and the best are among them."""

import random
from dataclasses import replace

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.router.placement.choose import Avoid, Expected, choose
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import NodeView
from twostep.router.placement.prefix_index import NO_HITS
from twostep.tests.router.placement.test_choose import EXPECTED, held, node, ref


def large(chance: random.Random, *, num_nodes: int = 40) -> list[NodeView]:
    """As many prefill as decode nodes, each prefill node with eight peers, all of them busy."""
    decode = [node(f"d{number}", chance.randrange(1, 20)) for number in range(num_nodes)]
    paths = [tuple(peer.ref.id for peer in chance.sample(decode, 8)) for _ in range(num_nodes)]
    return [*decode, *(node(f"p{number}", chance.randrange(10, 500), paths[number]) for number in range(num_nodes))]


def fleet_of(nodes: list[NodeView]) -> Fleet:
    fleet = Fleet()
    for one in nodes:
        fleet.put(one)
    return fleet


def test_of_a_small_cluster_all_pairs_are_weighed() -> None:
    fleet = fleet_of([node("p1", 0, ("d1", "d2")), node("p2", 0, ("d2",)), node("d1"), node("d2")])
    candidates = fleet.candidates(may_be_alone=True)
    assert [(p.ref.id, d.ref.id) for p, d in candidates.pairs] == [("p1", "d1"), ("p1", "d2"), ("p2", "d2")]
    assert len(candidates.alone) == 2


def test_of_a_large_cluster_few_pairs_are_weighed_and_the_choice_is_as_good_as_that_among_all() -> None:
    for seed in range(20):
        nodes = large(random.Random(seed))
        fleet = fleet_of(nodes)
        hits = held(p1=10, p2=5, p3=9, d4=8)
        candidates = fleet.candidates(hits, may_be_alone=True)
        assert len(candidates.pairs) <= 40
        few = choose(candidates, EXPECTED, now=0.0)
        every = [(p, d) for p in fleet.prefill for d in fleet.decode if d.ref in p.paths]
        best = choose(replace(candidates, pairs=every), EXPECTED, now=0.0)
        assert few.cost is not None
        assert best.cost is not None
        assert few.cost.total <= best.cost.total * 1.05


def test_the_idlest_of_the_nearest_peers_is_weighed_as_well() -> None:
    near = [node(f"d{number}", 10 + number, place=("zone", "host")) for number in range(2)]
    far = [node(f"d{number}", place=("other zone", f"host {number}")) for number in range(2, 100)]
    prefill = node("p1", 0, {one.ref.id: 1e9 for one in far} | {one.ref.id: 1e12 for one in near}, place=("zone", "host"))
    fleet = fleet_of([prefill, *near, *far])
    assert near[0] in [decode for _, decode in fleet.candidates(may_be_alone=False).pairs]
    assert choose(fleet.candidates(may_be_alone=False), Expected(10**9, 0.0), now=0.0).decode is near[0]
    assert choose(fleet.candidates(may_be_alone=False), EXPECTED, now=0.0).decode in far


def test_what_waits_for_the_next_pick_is_taken_up_once_then() -> None:
    fleet = fleet_of([node("p1", 0, ("d1",)), node("d1")])
    taken: list[int] = []
    for load in (1, 2):
        fleet.before_next_pick("p1", lambda load=load: (taken.append(load), fleet.put(node("p1", load, ("d1",)))))  # type: ignore[misc]
    assert [p.free_at for p, _ in fleet.candidates(may_be_alone=False).pairs] == [node("p1", 2, ("d1",)).free_at]
    fleet.candidates(may_be_alone=False)
    assert taken == [2]


def test_what_has_changed_counts_at_once() -> None:
    nodes = large(random.Random(1))
    fleet = fleet_of(nodes)
    idle = node("p7", 0, tuple(peer.id for peer in nodes[47].paths))
    fleet.put(idle)
    expected = Expected(32, 0.0)
    assert choose(fleet.candidates(may_be_alone=False), expected, now=0.0).prefill is idle
    fleet.remove(ref("p7"))
    placement = choose(fleet.candidates(may_be_alone=False), expected, now=0.0)
    assert placement.prefill is not None
    assert placement.prefill.ref != ref("p7")


def test_a_node_that_failed_is_not_weighed_while_there_are_others() -> None:
    fleet = fleet_of(large(random.Random(2)))
    first = choose(fleet.candidates(may_be_alone=False), EXPECTED, now=0.0)
    assert first.prefill is not None
    avoid = Avoid({first.prefill.ref: 1})
    pairs = fleet.candidates(may_be_alone=False, avoid=avoid).pairs
    assert pairs
    assert first.prefill.ref not in {p.ref for p, _ in pairs}


def test_when_all_that_are_near_have_failed_they_are_weighed_all_the_same() -> None:
    nodes = large(random.Random(3))
    fleet = fleet_of(nodes)
    avoid = Avoid({one.ref: 1 for one in nodes})
    assert fleet.candidates(may_be_alone=False, avoid=avoid).pairs


def test_who_comes_and_goes_is_counted_and_who_only_works_is_not() -> None:
    fleet = fleet_of([node("p1", 0, ("d1",)), node("d1")])
    assert (fleet.num_changes, fleet.has_pair()) == (2, True)
    [view] = fleet.decode
    fleet.put(NodeView(view.description, load=3))
    assert fleet.num_changes == 2
    fleet.remove(ref("d1"))
    fleet.remove(NodeRef(NodeId("d1"), Incarnation(7)))
    assert (fleet.num_changes, fleet.has_pair()) == (3, False)
    assert fleet.candidates(NO_HITS, may_be_alone=True).num_decode == 0
