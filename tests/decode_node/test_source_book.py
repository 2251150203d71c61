import ctypes
from dataclasses import replace

import pytest

from twostep.core.errors import NodeUnavailable, Overloaded, StaleLeg
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.decode_node.landing_memory import LandingMemory
from twostep.decode_node.source_book import SourceBook
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.probe import probe_digest
from twostep.node.description import Peer, PeerStage
from twostep.node.handoff_messages import Introduction, Welcome
from twostep.tests.handoff.clock import ManualClock

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=4, block_tokens=32, dtype="float32")
GEOMETRY = Geometry(block_tokens=32, max_model_tokens=512, layer_group=1, first_head=0, end_head=2)
FINGERPRINT = Fingerprint.from_dict({"model": "fake"})
P1 = NodeRef(NodeId("p"), Incarnation(1))
P2 = NodeRef(NodeId("p"), Incarnation(2))
Q = NodeRef(NodeId("q"), Incarnation(1))
D = NodeRef(NodeId("d"), Incarnation(1))


class Desk:
    """A source book over real landing memory."""

    def __init__(self, *, max_sources: int = 8) -> None:
        self.clock = ManualClock()
        self.memory = LandingMemory(1 << 16)
        self.landing = LandingPool(1 << 16, cooldown_s=60.0, clock=self.clock)
        welcome = Welcome(D, FINGERPRINT, GEOMETRY, "local", b"", self.memory.region(), 1, 0, 0)
        self.book = SourceBook(welcome, self.landing, LAYOUT, max_sources=max_sources, clock=self.clock)

    def introduce(self, node: NodeRef) -> Welcome:
        return self.book.introduce(Introduction(node, FINGERPRINT, GEOMETRY, f"{node.id}:1", "local"))

    def write_probe(self, welcome: Welcome) -> bytes:
        """Do what the prefill node does: write a pattern; returns its digest."""
        pattern = bytes(range(256)) * (welcome.probe_bytes // 256)
        ctypes.memmove(welcome.landing.address + welcome.probe_offset, pattern, len(pattern))
        return probe_digest(pattern)

    def prove(self, node: NodeRef) -> None:
        assert self.book.prove(node, 1, self.write_probe(self.introduce(node)))


def test_a_node_is_proven_when_its_probe_has_arrived_and_then_the_place_is_free_again() -> None:
    desk = Desk()
    welcome = desk.introduce(P1)
    assert not desk.book.prove(P1, 1, b"what it will be")
    with pytest.raises(NodeUnavailable):
        desk.book.require_proven(P1)
    assert desk.book.prove(P1, 1, desk.write_probe(welcome))
    desk.book.require_proven(P1)
    assert desk.landing.census().free_bytes == 1 << 16


def test_a_proven_node_that_asks_again_is_still_known() -> None:
    desk = Desk()
    desk.prove(P1)
    assert desk.book.prove(P1, 1, b"")


def test_a_node_that_never_introduced_itself_is_stale() -> None:
    with pytest.raises(StaleLeg):
        Desk().book.prove(P1, 1, b"")


def test_a_new_incarnation_replaces_the_old_one_which_is_no_longer_proven() -> None:
    desk = Desk()
    desk.prove(P1)
    desk.introduce(P2)
    assert desk.book.incarnation_of(P1.id) == P2
    assert desk.book.address_of(P1) is None
    with pytest.raises(NodeUnavailable):
        desk.book.require_proven(P1)


def test_the_place_of_a_probe_that_an_earlier_life_may_still_write_rests() -> None:
    desk = Desk()
    size = desk.introduce(P1).probe_bytes
    desk.introduce(P2)
    census = desk.landing.census()
    assert (census.lent_bytes, census.draining_bytes) == (size, size)


def test_a_node_that_tries_again_writes_to_the_same_place() -> None:
    desk = Desk()
    assert desk.introduce(P1) == desk.introduce(P1)


def test_a_named_node_is_expected_until_it_has_proved_itself() -> None:
    desk = Desk()
    peer = Peer(P1, "p:1")
    assert desk.book.meet([peer], 30.0)[0].stage is PeerStage.HANDSHAKING
    desk.prove(P1)
    assert desk.book.meet([peer], 30.0)[0].stage is PeerStage.PROVEN


def test_a_node_that_no_router_names_is_forgotten_unless_it_is_in_use() -> None:
    desk = Desk()
    desk.prove(P1)
    desk.book.meet([Peer(P1, "p:1")], 100.0)
    desk.clock.advance(99.0)
    desk.book.expire(set())
    assert desk.book.incarnation_of(P1.id) == P1
    desk.clock.advance(2.0)
    desk.book.expire({P1})
    assert desk.book.incarnation_of(P1.id) == P1
    desk.book.expire(set())
    assert desk.book.incarnation_of(P1.id) is None


def test_no_more_nodes_are_known_than_configured() -> None:
    desk = Desk(max_sources=1)
    desk.introduce(P1)
    with pytest.raises(Overloaded, match="knows 1 prefill nodes"):
        desk.introduce(Q)
    desk.introduce(P2)


def test_the_welcome_tells_where_the_landing_pool_is() -> None:
    desk = Desk()
    welcome = desk.introduce(P1)
    assert welcome == replace(desk.book._welcome, probe_offset=welcome.probe_offset, probe_bytes=(1 << 16) // 16)
