"""NIXL and UCX between real processes: bytes arrive, and a peer that is killed or frozen fails alone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from twostep.core.errors import TransferFailed
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.transport import PeerLanding, Write, WriteState
from twostep.kv_transfer.wires import WIRES
from twostep.tests.kv_transfer.host_memory import region_of
from twostep.tests.kv_transfer.needs_ucx import NEEDS_UCX
from twostep.tests.kv_transfer.nodes import node

pytestmark = pytest.mark.processes
UNIT = 64 << 10
NUM_UNITS = 512
CHILD = Path(__file__).with_name("landing_process.py")


class Peer:
    """A child process with a landing pool of NUM_UNITS units."""

    def __init__(self, kind: str, name: str, incarnation: int = 1) -> None:
        command = [sys.executable, str(CHILD), kind, name, str(incarnation), str(NUM_UNITS * UNIT)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ref = node(name, incarnation)

    @cached_property
    def landing(self) -> PeerLanding:
        """Wait until the process tells where it lets others write."""
        told = self._answer()
        region = MemoryRegion(told["address"], NUM_UNITS * UNIT)
        return PeerLanding(self.ref, bytes.fromhex(told["metadata"]), region, 1)

    def look(self, offset: int, length: int) -> dict:
        assert self.process.stdin
        print(json.dumps([offset, length]), file=self.process.stdin, flush=True)
        return self._answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()

    def _answer(self) -> dict:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())


class Source:
    """This process: a source pool of NUM_UNITS random units."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.memory = np.random.default_rng(1).integers(0, 255, NUM_UNITS * UNIT, np.uint8)
        self.transport = WIRES[kind](node("p"))
        self.transport.register_source(region_of(self.memory), UNIT)

    def post(self, peer: Peer, first: int = 0, count: int = NUM_UNITS, note: bytes = b"") -> Write:
        units = np.arange(first, first + count, dtype=np.int32)
        return self.transport.post(peer.ref, units, units, note)

    def outcome(self, write: Write, patience_s: float = 20) -> WriteState:
        """Poll until the write is over or patience ends."""
        give_up_s = time.monotonic() + patience_s
        state = WriteState.PENDING
        while state is WriteState.PENDING and time.monotonic() < give_up_s:
            state = self.transport.poll(write)
        return state

    def write(self, peer: Peer, **what: int) -> WriteState:
        return self.outcome(self.post(peer, **what))


@pytest.fixture(
    params=[
        pytest.param(("nixl", "all"), id="nixl"),
        pytest.param(("nixl", "tcp"), id="nixl-tcp"),
        pytest.param(("ucx", "all"), id="ucx", marks=NEEDS_UCX),
    ]
)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    kind, carriers = request.param
    monkeypatch.setenv("UCX_TLS", carriers)
    source = Source(kind)
    yield source
    source.transport.close()


@pytest.fixture
def peers(source: Source) -> Iterator[list[Peer]]:
    """Two connected peers; those that a test adds are ended too."""
    peers = [Peer(source.kind, "a"), Peer(source.kind, "b")]
    for peer in peers:
        source.transport.connect(peer.landing)
    yield peers
    for peer in peers:
        peer.close()


def test_bytes_and_notes_arrive_in_another_process(source: Source, peers: list[Peer]) -> None:
    for index, peer in enumerate(peers):
        write = source.post(peer, first=index, count=300, note=b"note %d" % index)
        assert source.outcome(write) is WriteState.DONE
        start, length = index * UNIT, 300 * UNIT
        expected = blake2b(source.memory[start : start + length]).hexdigest()
        answers = (peer.look(start, length) for _ in range(1000))
        assert next(answer for answer in answers if answer["notes"]) == {"digest": expected, "notes": [f"note {index}"]}


def test_a_killed_peer_fails_and_the_other_goes_on(source: Source, peers: list[Peer]) -> None:
    doomed, alive = peers
    threading.Timer(0.05, doomed.process.kill).start()
    state = WriteState.DONE
    while state is WriteState.DONE:
        state = source.write(doomed)
    assert state is WriteState.FAILED
    assert source.write(alive) is WriteState.DONE
    assert source.write(doomed, count=1) is WriteState.FAILED


def test_a_killed_peer_comes_back_as_a_new_incarnation(source: Source, peers: list[Peer]) -> None:
    old = peers[0]
    assert source.write(old, count=3) is WriteState.DONE
    old.kill()
    peers.append(new := Peer(source.kind, "a", incarnation=2))
    source.transport.forget(old.ref)
    source.transport.connect(new.landing)
    assert source.write(new, count=3) is WriteState.DONE
    assert new.look(0, 3 * UNIT)["digest"] == blake2b(source.memory[: 3 * UNIT]).hexdigest()
    with pytest.raises(TransferFailed, match="not connected"):
        source.post(old)


def test_a_frozen_peer_stays_pending_until_it_is_forgotten_and_delays_nobody(source: Source, peers: list[Peer]) -> None:
    frozen, alive = peers
    frozen.freeze()
    write = source.post(frozen, count=8, note=b"x")
    assert source.write(alive, count=8) is WriteState.DONE
    assert source.outcome(write, patience_s=0.2) is WriteState.PENDING
    source.transport.forget(frozen.ref)
    assert source.outcome(write) is WriteState.FAILED
    assert source.write(alive, count=8) is WriteState.DONE


def test_connecting_to_a_frozen_peer_does_not_delay_writes_to_others(source: Source, peers: list[Peer]) -> None:
    alive = peers[0]
    peers.append(late := Peer(source.kind, "late"))
    landing = late.landing
    late.freeze()
    connecting = threading.Thread(target=source.transport.connect, args=(landing,))
    connecting.start()
    assert [source.write(alive, count=4) for _ in range(50)] == [WriteState.DONE] * 50
    connecting.join(20)
    assert not connecting.is_alive()


def test_peers_come_and_go_on_another_thread_while_writes_go_on(source: Source, peers: list[Peer]) -> None:
    busy, guest = peers
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            source.transport.forget(guest.ref)
            source.transport.connect(guest.landing)

    visitor = threading.Thread(target=come_and_go)
    visitor.start()
    states = [source.write(busy, first=first, count=16) for first, _ in zip(cycle(range(0, 480, 16)), range(300), strict=False)]
    stop.set()
    visitor.join()
    assert states == [WriteState.DONE] * 300
    assert source.write(guest, count=4) is WriteState.DONE
    assert busy.look(0, 480 * UNIT)["digest"] == blake2b(source.memory[: 480 * UNIT]).hexdigest()
