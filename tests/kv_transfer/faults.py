"""A transport that misbehaves as told: loses or doubles notes, keeps writes pending, fails them, spoils landed bytes."""

from collections import deque
from collections.abc import Callable

from twostep.core.ids import NodeRef
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic
from twostep.kv_transfer.transport import PeerLanding, Transport, Units, Write, WriteState

Notes = Callable[[bytes], list[bytes]]


class FaultyTransport:
    """Wraps a transport. `notes` turns each arriving note into those that are delivered; `held` writes stay pending."""

    def __init__(self, inner: Transport, *, notes: Notes = lambda note: [note]) -> None:
        self._inner = inner
        self._notes = notes
        self.name = inner.name
        self.holding = False
        self.num_posts = 0
        self.takes_tcp = False
        """Whether probes are counted as what this process has sent over TCP."""
        self._num_tcp_bytes = 0
        self.failing: deque[bool] = deque()
        """For each coming poll of a finished write, whether it is told as FAILED."""

    def notifications(self) -> list[bytes]:
        return [given for note in self._inner.notifications() for given in self._notes(note)]

    def poll(self, write: Write) -> WriteState:
        if self.holding:
            return WriteState.PENDING
        state = self._inner.poll(write)
        fails = state is not WriteState.PENDING and self.failing and self.failing.popleft()
        return WriteState.FAILED if fails else state

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        self.num_posts += 1
        return self._inner.post(peer, source_units, landing_units, note)

    @property
    def path(self) -> str:
        return self._inner.path

    def traffic(self) -> Traffic:
        return Traffic(tcp_bytes=self._num_tcp_bytes)

    def register_landing(self, landing: MemoryRegion) -> None:
        self._inner.register_landing(landing)

    def metadata(self) -> bytes:
        return self._inner.metadata()

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        self._inner.register_source(source, unit_bytes)

    def connect(self, peer: PeerLanding) -> None:
        self._inner.connect(peer)

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        self._num_tcp_bytes += len(pattern) * self.takes_tcp
        return self._inner.post_probe(peer, landing_offset, pattern, note)

    def forget(self, peer: NodeRef) -> None:
        self._inner.forget(peer)

    def close(self) -> None:
        self._inner.close()
