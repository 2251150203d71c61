"""Which nodes are chosen, and what is said when it is not a pair."""

import pytest

from twostep.core.errors import NoReadyNode
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.router.node_view import NodeDescription, NodeView
from twostep.router.placement import Avoid, Bypass, Pool, choose_pair
from twostep.tests.router.fake_nodes import FINGERPRINT, GEOMETRY


def ref(name: str) -> NodeRef:
    return NodeRef(NodeId(name), Incarnation(1))


def node(name: str, load: int = 0, proven: tuple[str, ...] = ()) -> NodeView:
    role = "prefill" if name.startswith("p") else "decode"
    description = NodeDescription(ref(name), role, True, "", "fake", FINGERPRINT, GEOMETRY, "local", "", 400, "")
    return NodeView(description, load, frozenset(map(ref, proven)))


def chosen(pool: Pool, *, alone: bool = False, keep: str = "", avoid: Avoid = Avoid()) -> tuple[str | None, str]:  # noqa: B008
    placement = choose_pair(pool, allow_decode_alone=alone, keep=ref(keep) if keep else None, avoid=avoid)
    return placement.prefill.ref.id if placement.prefill else None, placement.decode.ref.id


BOTH = ("d1", "d2")


def test_the_least_loaded_pair_is_chosen() -> None:
    pool = Pool([node("p1", 50, BOTH), node("p2", 10, BOTH)], [node("d1", 3), node("d2", 1)])
    assert chosen(pool) == ("p2", "d2")


def test_only_a_pair_that_moved_bytes_is_chosen() -> None:
    pool = Pool([node("p1", 50, ("d1",)), node("p2", 10)], [node("d1", 3), node("d2", 1)])
    assert chosen(pool) == ("p1", "d1")


def test_the_decode_node_that_holds_the_reservation_is_kept() -> None:
    pool = Pool([node("p1", 0, BOTH)], [node("d1", 9), node("d2", 1)])
    assert chosen(pool, keep="d1") == ("p1", "d1")


def test_a_node_that_failed_is_avoided_while_there_is_another() -> None:
    pool = Pool([node("p1", 0, BOTH), node("p2", 99, BOTH)], [node("d1")])
    assert chosen(pool, avoid=Avoid(frozenset({ref("p1")}))) == ("p2", "d1")
    assert chosen(Pool(pool.prefill[:1], pool.decode), avoid=Avoid(frozenset({ref("p1")}))) == ("p1", "d1")


def test_a_pair_whose_transfer_failed_is_avoided_while_either_of_its_nodes_can_be_paired_otherwise() -> None:
    pool = Pool([node("p1", 0, BOTH), node("p2", 99, BOTH)], [node("d1"), node("d2", 5)])
    avoid = Avoid(doubtful=frozenset({(ref("p1"), ref("d1"))}))
    assert chosen(pool, keep="d1", avoid=avoid) == ("p2", "d1")
    assert chosen(Pool(pool.prefill[:1], pool.decode), keep="d1", avoid=avoid) == ("p1", "d2")
    assert chosen(Pool(pool.prefill[:1], pool.decode[:1]), keep="d1", avoid=avoid) == ("p1", "d1")


def test_a_mismatched_pair_is_never_formed_again() -> None:
    pool = Pool([node("p1", 0, BOTH)], [node("d1", 0), node("d2", 5)])
    avoid = Avoid(mismatched=frozenset({(ref("p1"), ref("d1"))}))
    assert chosen(pool, avoid=avoid) == ("p1", "d2")


def test_a_decode_node_serves_alone_only_where_that_is_allowed() -> None:
    pool = Pool([], [node("d1", 2), node("d2", 1)])
    assert choose_pair(pool, allow_decode_alone=True).bypass is Bypass.NO_PREFILL_NODE
    assert chosen(pool, alone=True) == (None, "d2")
    with pytest.raises(NoReadyNode, match="no prefill node can serve: no prefill node"):
        chosen(pool)


def test_a_pair_that_is_not_proven_is_named_as_the_reason() -> None:
    pool = Pool([node("p1")], [node("d1")])
    assert choose_pair(pool, allow_decode_alone=True).bypass is Bypass.NO_PROVEN_PAIR


def test_without_a_decode_node_nothing_can_be_served() -> None:
    with pytest.raises(NoReadyNode) as raised:
        chosen(Pool([node("p1")], []), alone=True)
    assert raised.value.http_status == 503
    assert raised.value.retry_after_s == 1.0
