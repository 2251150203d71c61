"""Writes that go through host memory: they wait for slots, are copied, posted, and give their slots back."""

import numpy as np
import pytest

from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.staged_transport import StagedTransport
from twostep.kv_transfer.transport import PeerLanding, Units, WriteState
from twostep.tests.kv_transfer.host_memory import LateStaging, region_of
from twostep.tests.kv_transfer.nodes import node

UNIT = 16
P, D = node("p"), node("d")


def units(*indices: int) -> Units:
    return np.array(indices, np.int32)


class Pair:
    """A source of eight units that is staged in `num_slots`, connected to a landing pool of eight."""

    def __init__(self, num_slots: int, num_looks: int = 2) -> None:
        fabric = LocalFabric()
        self.num_slots, self.num_looks = num_slots, num_looks
        self.source = np.arange(1, 8 * UNIT + 1, dtype=np.uint8)
        self.landing = np.zeros(8 * UNIT, np.uint8)
        self.transport = StagedTransport(LocalTransport(fabric, P), self._staging)
        self.transport.register_source(self.region, UNIT)
        there = LocalTransport(fabric, D)
        there.register_landing(region_of(self.landing))
        self.transport.connect(PeerLanding(D, there.metadata(), region_of(self.landing), 1))

    def _staging(self, unit_bytes: int) -> LateStaging:
        return LateStaging(self.region, unit_bytes, self.num_slots, self.num_looks)

    @property
    def region(self) -> MemoryRegion:
        return region_of(self.source)

    def landed(self) -> list[int]:
        """Return which of P's units lies in each unit of the landing pool; -1: none."""
        firsts = self.landing.reshape(8, UNIT)[:, 0].tolist()
        return [(first - 1) // UNIT for first in firsts]


def test_writes_are_under_way_together_as_far_as_there_are_slots_and_in_order_beyond() -> None:
    """A copy is there when it is looked at for the second time, which each post and each poll does."""
    pair = Pair(num_slots=3)
    first = pair.transport.post(D, units(0, 1), units(0, 1), b"")
    assert pair.landed() == [-1] * 8
    second = pair.transport.post(D, units(2, 3), units(2, 3), b"")
    assert pair.landed() == [0, 1, *[-1] * 6]
    beside = pair.transport.post(D, units(7), units(7), b"")
    after = pair.transport.post(D, units(4, 5, 6), units(4, 5, 6), b"")
    assert pair.landed() == [0, 1, 2, 3, -1, -1, -1, 7]
    assert [pair.transport.poll(write) for write in (first, second, beside)] == [WriteState.DONE] * 3
    assert pair.transport.poll(after) is WriteState.DONE
    assert pair.landed() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_what_is_sent_is_what_lay_there_when_it_was_copied() -> None:
    pair = Pair(num_slots=2)
    write = pair.transport.post(D, units(1), units(0), b"")
    pair.source[:] = 0
    assert pair.transport.poll(write) is WriteState.DONE
    assert pair.landed()[0] == 1


def test_a_write_that_needs_more_slots_than_there_are_is_refused() -> None:
    pair = Pair(num_slots=2)
    with pytest.raises(ValueError, match="3 units is staged in 2 slots"):
        pair.transport.post(D, units(0, 1, 2), units(0, 1, 2), b"")


def test_writes_to_a_peer_that_is_dropped_fail_also_those_that_wait() -> None:
    pair = Pair(num_slots=1, num_looks=9)
    writes = [pair.transport.post(D, units(at), units(at), b"") for at in range(3)]
    pair.transport.forget(D)
    states: set[WriteState] = set()
    while len(writes) and (states := {pair.transport.poll(writes[0])}):
        writes = writes if WriteState.PENDING in states else writes[1:]
        assert WriteState.DONE not in states
    assert pair.landed() == [-1] * 8
