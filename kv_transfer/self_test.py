"""Proves that a transport moves bytes at all, between two throwaway ends in this process, before anybody relies on it."""

import time
from collections.abc import Callable

import numpy as np

from twostep.core.clock import Clock
from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.core.kv_memory import OpenMemory
from twostep.core.memory import HostMemory
from twostep.kv_transfer.probe import OutgoingProbe, ProbeResult, probe_digest
from twostep.kv_transfer.transport import PeerLanding, Transport, WriteState

PATIENCE_S = 20.0
"""A transport that works takes a small part of this, on a machine that is busy starting others too."""
NUM_BYTES = 1 << 20
REST_S = 0.0005


def move_some_bytes(
    open_transport: Callable[[NodeRef], Transport],
    *,
    open_memory: Callable[[int], OpenMemory] = lambda num_bytes: HostMemory(num_bytes, "self-test"),
    timeout_s: float = PATIENCE_S,
    clock: Clock = time.monotonic,
) -> ProbeResult:
    """Return what a probe moved, how fast and over what; blocks. Then the same bytes are moved within `open_memory`'s.

    Raises TransferFailed when they do not arrive in time.
    """
    memory = open_memory(2 * NUM_BYTES)
    sender, receiver = (NodeRef(NodeId(f"self-test-{end}"), new_incarnation()) for end in ("sender", "receiver"))
    sending = open_transport(sender)
    try:
        receiving = open_transport(receiver)
        try:
            sending.register_source(memory.region(), NUM_BYTES)
            receiving.register_landing(memory.region())
            sending.connect(PeerLanding(receiver, receiving.metadata(), memory.region(), 1))
            ends = _Ends(sending, receiving, receiver, memory, clock() + timeout_s, clock)
            result = ends.probe()
            ends.move(result.digest)
            return result
        finally:
            receiving.close()
    finally:
        sending.close()


class _Ends:
    """Both ends, over one piece of memory of two units."""

    def __init__(
        self,
        sending: Transport,
        receiving: Transport,
        receiver: NodeRef,
        memory: OpenMemory,
        give_up_at: float,
        clock: Clock,
    ) -> None:
        self._sending, self._receiving, self._receiver = sending, receiving, receiver
        self._memory = memory
        self._give_up_at, self._clock = give_up_at, clock

    def probe(self) -> ProbeResult:
        """Write a pattern into the first unit."""
        probe = OutgoingProbe(self._receiver, 0, NUM_BYTES, self._clock)
        while not probe.advance(self._sending):
            self._rest()
        result = probe.outcome.result()
        self._await(0, result.digest)
        return result

    def move(self, digest: bytes) -> None:
        """Write the first unit into the second."""
        write = self._sending.post(self._receiver, np.array([0], np.int32), np.array([1], np.int32), b"")
        while (state := self._sending.poll(write)) is WriteState.PENDING:
            self._rest()
        if state is WriteState.FAILED:
            raise TransferFailed(f"{self._sending.name}: a write out of registered memory has failed")
        self._await(NUM_BYTES, digest)

    def _await(self, offset: int, digest: bytes) -> None:
        while probe_digest(self._memory.read(offset, NUM_BYTES)) != digest:
            self._rest()

    def _rest(self) -> None:
        self._receiving.notifications()
        if self._clock() > self._give_up_at:
            raise TransferFailed(f"{self._sending.name}: bytes that this machine sends itself do not arrive")
        time.sleep(REST_S)
