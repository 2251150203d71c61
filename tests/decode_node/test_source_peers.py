import ctypes
from dataclasses import replace

import pytest

from twostep.core.errors import Overloaded, StaleLeg, TransferFailed, UnprovenPair, Unsupported
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Generation, Incarnation, NodeId, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.memory import HostMemory
from twostep.decode_node.source_peers import SourcePeers
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.probe import probe_digest
from twostep.node.description import Peer, PeerStage
from twostep.node.handoff_messages import Hello, HelloReply
from twostep.tests.handoff.clock import ManualClock

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=4, block_tokens=32, dtype="float32")
GEOMETRY = Geometry(block_tokens=32, max_model_tokens=512, layer_group=1, first_head=0, end_head=2)
FINGERPRINT = Fingerprint.from_dict({"model": "fake"})
P1 = NodeRef(NodeId("p"), Incarnation(1))
P2 = NodeRef(NodeId("p"), Incarnation(2))
Q = NodeRef(NodeId("q"), Incarnation(1))
D = NodeRef(NodeId("d"), Incarnation(1))


class Rig:
    """Source peers over real landing memory."""

    def __init__(self, *, max_sources: int = 8) -> None:
        self.clock = ManualClock()
        self.memory = HostMemory(1 << 16, "landing_bytes")
        self.landing = LandingPool(1 << 16, cooldown_s=60.0, clock=self.clock)
        reply = HelloReply(D, FINGERPRINT, GEOMETRY, "local", b"", self.memory.region(), 1, 0, 0, Generation(0))
        self.peers = SourcePeers(reply, self.landing, self.memory, LAYOUT, max_sources=max_sources, clock=self.clock)

    def answer_hello(self, node: NodeRef) -> HelloReply:
        return self.peers.answer_hello(Hello(node, FINGERPRINT, GEOMETRY, f"{node.id}:1", "local"))

    def write_probe(self, reply: HelloReply) -> bytes:
        """Do what the prefill node does: write a pattern; returns its digest."""
        pattern = bytes(range(256)) * (reply.probe_bytes // 256)
        ctypes.memmove(reply.landing.address + reply.probe_offset, pattern, len(pattern))
        return probe_digest(pattern)

    def prove(self, node: NodeRef) -> None:
        assert self.peers.prove(node, 1, self.write_probe(self.answer_hello(node)))


def test_the_place_of_a_probe_that_was_begun_again_rests_a_write_of_the_first_try_may_still_land_there() -> None:
    rig = Rig()
    rig.answer_hello(P1)
    rig.prove(P1)
    assert rig.landing.census().draining_bytes == rig.landing.census().total_bytes - rig.landing.census().free_bytes > 0


def test_a_node_is_proven_when_its_probe_has_arrived_and_then_the_place_is_free_again() -> None:
    rig = Rig()
    reply = rig.answer_hello(P1)
    assert not rig.peers.prove(P1, 1, b"what it will be")
    with pytest.raises(TransferFailed):
        rig.peers.require_proven(P1, GEOMETRY)
    assert rig.peers.prove(P1, 1, rig.write_probe(reply))
    rig.peers.require_proven(P1, GEOMETRY)
    assert rig.landing.census().free_bytes == 1 << 16


def test_a_proven_node_that_asks_again_is_still_known() -> None:
    rig = Rig()
    rig.prove(P1)
    assert rig.peers.prove(P1, 1, b"")


def test_a_node_that_never_introduced_itself_is_stale() -> None:
    with pytest.raises(StaleLeg):
        Rig().peers.prove(P1, 1, b"")


def test_a_new_incarnation_replaces_the_old_one_which_is_no_longer_proven() -> None:
    rig = Rig()
    rig.prove(P1)
    rig.answer_hello(P2)
    assert rig.peers.incarnation_of(P1.id) == P2
    assert rig.peers.address_of(P1) is None
    with pytest.raises(TransferFailed):
        rig.peers.require_proven(P1, GEOMETRY)


def test_the_place_of_a_probe_that_an_earlier_life_may_still_write_rests() -> None:
    rig = Rig()
    size = rig.answer_hello(P1).probe_bytes
    rig.answer_hello(P2)
    census = rig.landing.census()
    assert (census.lent_bytes, census.draining_bytes) == (size, size)


def test_a_node_that_tries_again_writes_to_the_same_place() -> None:
    rig = Rig()
    assert rig.answer_hello(P1) == rig.answer_hello(P1)


def test_a_named_node_is_expected_until_it_has_proved_itself() -> None:
    rig = Rig()
    peer = Peer(P1, "p:1")
    assert rig.peers.learn_peers([peer], 30.0)[0].stage is PeerStage.HANDSHAKING
    rig.prove(P1)
    assert rig.peers.learn_peers([peer], 30.0)[0].stage is PeerStage.PROVEN


def test_a_node_that_no_router_names_is_forgotten_unless_it_is_in_use() -> None:
    rig = Rig()
    rig.prove(P1)
    rig.peers.learn_peers([Peer(P1, "p:1")], 100.0)
    rig.clock.advance(99.0)
    rig.peers.expire(set())
    assert rig.peers.incarnation_of(P1.id) == P1
    rig.clock.advance(2.0)
    rig.peers.expire({P1})
    assert rig.peers.incarnation_of(P1.id) == P1
    rig.peers.expire(set())
    assert rig.peers.incarnation_of(P1.id) is None


def test_no_more_nodes_are_known_than_configured() -> None:
    rig = Rig(max_sources=1)
    rig.answer_hello(P1)
    with pytest.raises(Overloaded, match="knows 1 prefill nodes"):
        rig.answer_hello(Q)
    rig.answer_hello(P2)


def test_the_reply_tells_where_the_landing_pool_is() -> None:
    rig = Rig()
    reply = rig.answer_hello(P1)
    assert reply == replace(rig.peers._reply, probe_offset=reply.probe_offset, probe_bytes=(1 << 16) // 16, generation=1)


def test_the_reply_tells_up_to_where_landing_space_has_been_lent() -> None:
    rig = Rig()
    rig.prove(P1)
    rig.landing.lend(64, 1, 1, Q)
    assert rig.answer_hello(P2).generation == 3


def test_a_node_is_proven_in_blocks_of_the_size_that_it_has_told_alone() -> None:
    rig = Rig()
    rig.prove(P1)
    with pytest.raises(UnprovenPair, match="another geometry"):
        rig.peers.require_proven(P1, replace(GEOMETRY, block_tokens=64))


@pytest.mark.parametrize("block_tokens", [0, 31])
def test_a_node_of_blocks_that_no_prefix_is_made_of_is_not_met(block_tokens: int) -> None:
    geometry = replace(GEOMETRY, block_tokens=block_tokens)
    with pytest.raises(Unsupported, match=f"blocks of {block_tokens} tokens, no multiple of 32"):
        Rig().peers.answer_hello(Hello(P1, FINGERPRINT, geometry, "p:1", "local"))
