"""The proof that bytes move between two nodes, how fast and over what: a random pattern, written twice, known by its digest."""

import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b

from twostep.core.clock import Clock
from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeRef
from twostep.kv_transfer.carrier import Carrier, Traffic, carrier_of
from twostep.kv_transfer.notes import PROBE_NOTE
from twostep.kv_transfer.promise import promise
from twostep.kv_transfer.transport import Transport, Write, WriteState


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the destination must find in its probe extent, the rate of the second write, and what has carried that."""

    digest: bytes
    bytes_per_s: float
    carrier: Carrier


class OutgoingProbe:
    """One probe of one peer. The first write sets the path up, the second is measured. Sender thread only."""

    def __init__(self, peer: NodeRef, landing_offset: int, num_bytes: int, clock: Clock) -> None:
        self.peer = peer
        self.outcome: Future[ProbeResult] = promise()
        self._landing_offset = landing_offset
        self._pattern = secrets.token_bytes(num_bytes)
        self._clock = clock
        self._write: Write | None = None
        self._started_s = 0.0
        self._before = Traffic()
        self._num_done = 0

    def advance(self, transport: Transport) -> bool:
        """Post or poll; return whether the probe is over."""
        try:
            return self._advance(transport)
        except (TransferFailed, ValueError) as cause:
            self.outcome.set_exception(cause)
            return True

    def _advance(self, transport: Transport) -> bool:
        if self._write is None:
            self._before = transport.traffic()
            self._started_s = self._clock()
            self._write = transport.post_probe(self.peer, self._landing_offset, self._pattern, PROBE_NOTE)
        state = transport.poll(self._write)
        if state is WriteState.FAILED:
            raise TransferFailed(f"{self.peer}: the probe could not be written")
        if state is WriteState.DONE:
            self._write = None
            self._num_done += 1
        if self._num_done < 2:
            return False
        elapsed_s = max(self._clock() - self._started_s, 1e-9)
        num_bytes = len(self._pattern)
        carrier = carrier_of(self._before, transport.traffic(), num_bytes)
        self.outcome.set_result(ProbeResult(probe_digest(self._pattern), num_bytes / elapsed_s, carrier))
        return True


def probe_digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
