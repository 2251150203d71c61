"""What every transport promises, checked for each in turn. Sender and receiver threads rely on nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.staged_transport import StagedTransport
from twostep.kv_transfer.transport import PeerLanding, Transport, Units, Write, WriteState
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.kv_transfer.host_memory import LateStaging, region_of
from twostep.tests.kv_transfer.needs_ucx import NEEDS_UCX
from twostep.tests.kv_transfer.nodes import node
from twostep.tests.simulator.moving_transport import moving_transports

UNIT = 256
NUM_SOURCE = 32
NUM_LANDING = 16


def units(*indices: int) -> Units:
    return np.array(indices, np.int32)


@dataclass
class Side:
    """One node of the contract: its transport and the memory it registers."""

    transport: Transport
    ref: NodeRef
    memory: np.ndarray

    @property
    def landing(self) -> PeerLanding:
        return PeerLanding(self.ref, self.transport.metadata(), region_of(self.memory), 1)

    def unit(self, index: int) -> bytes:
        return self.memory[index * UNIT : (index + 1) * UNIT].tobytes()


@dataclass
class Net:
    """Makes nodes on one transport, moves time on by polling everybody, and closes all at the end."""

    make: Callable[[NodeRef], Transport]
    sides: list[Side] = field(default_factory=list)
    heard: dict[NodeRef, list[bytes]] = field(default_factory=dict)

    def source(self, name: str) -> Side:
        memory = np.random.default_rng(len(self.sides)).integers(1, 255, NUM_SOURCE * UNIT, np.uint8)
        side = self._side(name, 1, memory)
        side.transport.register_source(region_of(side.memory), UNIT)
        return side

    def target(self, name: str, incarnation: int = 1) -> Side:
        side = self._side(name, incarnation, np.zeros(NUM_LANDING * UNIT, np.uint8))
        side.transport.register_landing(region_of(side.memory))
        return side

    def outcome(self, side: Side, write: Write) -> WriteState:
        for _ in range(200_000):
            state = side.transport.poll(write)
            self.listen()
            if state is not WriteState.PENDING:
                return state
        raise AssertionError("the write stays pending")

    def await_notes(self, side: Side, count: int) -> list[bytes]:
        for _ in range(200_000):
            self.listen()
            if len(self.heard.get(side.ref, [])) >= count:
                break
        return self.heard.get(side.ref, [])

    def listen(self) -> None:
        for side in self.sides:
            self.heard.setdefault(side.ref, []).extend(side.transport.notifications())

    def _side(self, name: str, incarnation: int, memory: np.ndarray) -> Side:
        ref = node(name, incarnation)
        side = Side(self.make(ref), ref, memory)
        self.sides.append(side)
        return side


def _local() -> Callable[[NodeRef], Transport]:
    fabric = LocalFabric()
    return lambda ref: LocalTransport(fabric, ref)


def _nixl() -> Callable[[NodeRef], Transport]:
    pytest.importorskip("nixl_cu12", reason="NIXL is not installed")
    return NixlTransport


def _staged() -> Callable[[NodeRef], Transport]:
    """Sides that write out of three slots. The memory of each is known by what it registers."""
    fabric = LocalFabric()
    return lambda ref: _StagedLocal(fabric, ref)


class _StagedLocal(StagedTransport):
    def __init__(self, fabric: LocalFabric, ref: NodeRef) -> None:
        super().__init__(LocalTransport(fabric, ref), self._staging_of_source)

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        self._source = source
        super().register_source(source, unit_bytes)

    def _staging_of_source(self, unit_bytes: int) -> LateStaging:
        return LateStaging(self._source, unit_bytes, num_slots=4)


@pytest.fixture(
    params=[
        pytest.param(_local, id="local"),
        pytest.param(_staged, id="staged"),
        pytest.param(moving_transports, id="simulated"),
        pytest.param(_nixl, id="nixl", marks=pytest.mark.processes),
        pytest.param(lambda: UcxTransport, id="ucx", marks=NEEDS_UCX),
    ]
)
def net(request: pytest.FixtureRequest) -> Iterator[Net]:
    net = Net(request.param())
    yield net
    for side in net.sides:
        side.transport.close()


def test_bytes_land_exactly_where_they_were_sent(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    write = p.transport.post(d.ref, units(3, 4, 31, 0), units(7, 8, 0, 15), b"note")
    assert net.outcome(p, write) is WriteState.DONE
    assert net.await_notes(d, 1) == [b"note"]
    expected = {7: p.unit(3), 8: p.unit(4), 0: p.unit(31), 15: p.unit(0)}
    assert [d.unit(i) for i in range(NUM_LANDING)] == [expected.get(i, bytes(UNIT)) for i in range(NUM_LANDING)]


def test_the_notification_comes_after_the_bytes(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    for turn in range(20):
        write, state = p.transport.post(d.ref, units(turn), units(turn % NUM_LANDING), b"%d" % turn), WriteState.PENDING
        while len(net.heard.get(d.ref, [])) <= turn:
            # The writer's own polling may be what sends the note.
            state = p.transport.poll(write) if state is WriteState.PENDING else state
            net.listen()
        assert d.unit(turn % NUM_LANDING) == p.unit(turn)
        assert state is WriteState.DONE or net.outcome(p, write) is WriteState.DONE
    assert net.heard[d.ref] == [b"%d" % turn for turn in range(20)]


def test_an_empty_note_is_not_delivered(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    assert net.outcome(p, p.transport.post(d.ref, units(0), units(0), b"")) is WriteState.DONE
    assert net.outcome(p, p.transport.post(d.ref, units(1), units(1), b"after")) is WriteState.DONE
    assert net.await_notes(d, 1) == [b"after"]


def test_two_peers_get_their_own_bytes(net: Net) -> None:
    p, a, b = net.source("p"), net.target("a"), net.target("b")
    for peer in (a, b):
        p.transport.connect(peer.landing)
    writes = [p.transport.post(a.ref, units(1), units(0), b"to a"), p.transport.post(b.ref, units(2), units(0), b"to b")]
    assert [net.outcome(p, write) for write in writes] == [WriteState.DONE, WriteState.DONE]
    assert (a.unit(0), b.unit(0)) == (p.unit(1), p.unit(2))
    assert (net.await_notes(a, 1), net.await_notes(b, 1)) == ([b"to a"], [b"to b"])


def test_two_sources_may_write_to_one_landing_pool(net: Net) -> None:
    p, q, d = net.source("p"), net.source("q"), net.target("d")
    for source, unit in ((p, 2), (q, 3)):
        source.transport.connect(d.landing)
        write = source.transport.post(d.ref, units(5), units(unit), source.ref.id.encode())
        assert net.outcome(source, write) is WriteState.DONE
    assert (d.unit(2), d.unit(3)) == (p.unit(5), q.unit(5))
    assert sorted(net.await_notes(d, 2)) == [b"p", b"q"]


@pytest.mark.parametrize(
    ("source_units", "landing_units"),
    [((0,), (NUM_LANDING,)), ((NUM_SOURCE,), (0,)), ((0,), (-1,)), ((-1,), (0,)), ((0, 1), (0,)), ((), ())],
)
def test_units_outside_are_refused_before_anything_is_posted(
    net: Net, source_units: tuple[int, ...], landing_units: tuple[int, ...]
) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    with pytest.raises(ValueError, match="units"):
        p.transport.post(d.ref, units(*source_units), units(*landing_units), b"never")
    assert net.outcome(p, p.transport.post(d.ref, units(0), units(1), b"well")) is WriteState.DONE
    assert net.await_notes(d, 1) == [b"well"]
    assert d.unit(0) == bytes(UNIT)


def test_a_node_that_was_never_connected_is_refused(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    with pytest.raises(TransferFailed, match="not connected"):
        p.transport.post(d.ref, units(0), units(0), b"")
    with pytest.raises(TransferFailed, match="not connected"):
        p.transport.post_probe(d.ref, 0, b"probe", b"")


def test_a_forgotten_node_is_refused_until_it_is_connected_again(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    p.transport.forget(d.ref)
    p.transport.forget(d.ref)
    with pytest.raises(TransferFailed, match="not connected"):
        p.transport.post(d.ref, units(0), units(0), b"")
    p.transport.connect(d.landing)
    assert net.outcome(p, p.transport.post(d.ref, units(0), units(0), b"")) is WriteState.DONE


def test_a_new_incarnation_takes_the_place_of_the_old(net: Net) -> None:
    p, old = net.source("p"), net.target("d", incarnation=1)
    p.transport.connect(old.landing)
    assert net.outcome(p, p.transport.post(old.ref, units(0), units(0), b"")) is WriteState.DONE
    new = net.target("d", incarnation=2)
    p.transport.forget(old.ref)
    p.transport.connect(new.landing)
    assert net.outcome(p, p.transport.post(new.ref, units(1), units(0), b"hello")) is WriteState.DONE
    assert (old.unit(0), new.unit(0)) == (p.unit(0), p.unit(1))
    assert net.await_notes(new, 1) == [b"hello"]


def test_landing_memory_that_is_not_registered_is_refused(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    elsewhere = np.zeros(NUM_LANDING * UNIT, np.uint8)
    with pytest.raises(TransferFailed):
        p.transport.connect(replace(d.landing, region=region_of(elsewhere)))
    too_long = MemoryRegion(d.memory.ctypes.data, d.memory.nbytes + (1 << 20))
    with pytest.raises(TransferFailed):
        p.transport.connect(replace(d.landing, region=too_long))
    p.transport.connect(d.landing)
    assert net.outcome(p, p.transport.post(d.ref, units(0), units(0), b"")) is WriteState.DONE


def test_metadata_that_is_not_a_peers_is_refused(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    with pytest.raises(TransferFailed, match="d@1"):
        p.transport.connect(replace(d.landing, metadata=b"nonsense"))


def test_nothing_works_before_memory_is_registered(net: Net) -> None:
    d = net.target("d")
    bare = net.make(node("bare"))
    with pytest.raises(ValueError, match="source"):
        bare.connect(d.landing)
    with pytest.raises(ValueError, match="landing"):
        bare.metadata()
    bare.close()


def test_a_probe_lands_at_its_offset(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    pattern = bytes(range(1, 101))
    assert net.outcome(p, p.transport.post_probe(d.ref, 1000, pattern, b"proof")) is WriteState.DONE
    assert d.memory.tobytes() == bytes(1000) + pattern + bytes(NUM_LANDING * UNIT - 1100)
    assert net.await_notes(d, 1) == [b"proof"]
    with pytest.raises(ValueError, match="outside"):
        p.transport.post_probe(d.ref, NUM_LANDING * UNIT - 1, b"ab", b"")


def test_writing_to_a_closed_peer_ends_as_failed_and_others_go_on(net: Net) -> None:
    p, dead, alive = net.source("p"), net.target("dead"), net.target("alive")
    for peer in (dead, alive):
        p.transport.connect(peer.landing)
        assert net.outcome(p, p.transport.post(peer.ref, units(0), units(0), b"")) is WriteState.DONE
    net.sides.remove(dead)
    dead.transport.close()
    assert net.outcome(p, p.transport.post(dead.ref, units(1), units(1), b"")) is WriteState.FAILED
    assert net.outcome(p, p.transport.post(alive.ref, units(1), units(1), b"")) is WriteState.DONE
    assert alive.unit(1) == p.unit(1)


def test_closing_twice_is_harmless(net: Net) -> None:
    p, d = net.source("p"), net.target("d")
    p.transport.connect(d.landing)
    for side in (p, d):
        side.transport.close()
        side.transport.close()
