"""Proves that a transport moves bytes at all, between two throwaway ends in this process, before anybody relies on it."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twostep.core.clock import Clock
from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.core.memory import MemoryRegion, host_pages
from twostep.kv_transfer.probe import OutgoingProbe, ProbeResult, landed_probe_digest
from twostep.kv_transfer.transport import PeerLanding, Transport

PATIENCE_S = 20.0
"""A transport that works takes a small part of this, on a machine that is busy starting others too."""
NUM_BYTES = 1 << 20
REST_S = 0.0005


def move_some_bytes(
    open_transport: Callable[[NodeRef], Transport], *, timeout_s: float = PATIENCE_S, clock: Clock = time.monotonic
) -> ProbeResult:
    """Return what a probe moved, how fast and over what; blocks. Raises TransferFailed when it does not arrive in time."""
    sent, landed = _memory(), _memory()
    sender, receiver = (NodeRef(NodeId(f"self-test-{end}"), new_incarnation()) for end in ("sender", "receiver"))
    sending = open_transport(sender)
    try:
        receiving = open_transport(receiver)
        try:
            sending.register_source(_region(sent), NUM_BYTES)
            receiving.register_landing(_region(landed))
            sending.connect(PeerLanding(receiver, receiving.metadata(), _region(landed), 1))
            return _probe(sending, receiving, receiver, _region(landed), clock() + timeout_s, clock)
        finally:
            receiving.close()
    finally:
        sending.close()


def _probe(
    sending: Transport, receiving: Transport, receiver: NodeRef, landed: MemoryRegion, give_up_at: float, clock: Clock
) -> ProbeResult:
    probe = OutgoingProbe(receiver, 0, NUM_BYTES, clock)
    while not probe.advance(sending):
        receiving.notifications()
        _require_time(sending, give_up_at, clock)
    result = probe.outcome.result()
    while landed_probe_digest(landed, 0, NUM_BYTES) != result.digest:
        _require_time(sending, give_up_at, clock)
    return result


def _require_time(transport: Transport, give_up_at: float, clock: Clock) -> None:
    if clock() > give_up_at:
        raise TransferFailed(f"{transport.name}: bytes that this machine sends itself do not arrive")
    time.sleep(REST_S)


def _memory() -> NDArray[np.uint8]:
    return np.frombuffer(host_pages(NUM_BYTES, "self-test"), dtype=np.uint8)


def _region(memory: NDArray[np.uint8]) -> MemoryRegion:
    return MemoryRegion(memory.ctypes.data, memory.nbytes)
