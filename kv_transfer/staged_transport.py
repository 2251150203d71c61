"""A transport that reads KV out of host memory, for one that cannot read the pool itself: host-staged.

A write waits for free slots, then for its copy into them, and only then is posted. Several are under way at once: while one
crosses the wire, the next is copied.
"""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.kv_memory import Staged, Staging
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic
from twostep.kv_transfer.transport import PeerLanding, Transport, Units, Write, WriteState, require_units


@dataclass(slots=True, eq=False)
class _Write:
    """A write on its way: waiting without `slots`, copied while `staged`, posted with `inner`."""

    peer: NodeRef
    source_units: Units
    landing_units: Units
    note: bytes
    slots: range = range(0)
    staged: Staged | None = None
    inner: Write | None = None
    state: WriteState = WriteState.PENDING


class StagedTransport:
    """Implements `Transport` over `inner`, which writes from `staging`'s slots. Posting and polling are one thread's.

    A write takes slots that lie in a row; one that needs more than there are is cut by nobody and refused.
    """

    def __init__(self, inner: Transport, make_staging: Callable[[int], Staging]) -> None:
        self.name = inner.name
        self._inner = inner
        self._make_staging = make_staging
        self._staging: Staging | None = None
        self._num_source_units = 0
        self._unit_bytes = 0
        self._num_landing_units: dict[NodeRef, int] = {}
        self._waiting: deque[_Write] = deque()
        self._under_way: deque[_Write] = deque()
        self._writes: dict[Write, _Write] = {}
        self._numbers = itertools.count()

    @property
    def path(self) -> str:
        return f"{self._inner.path}, staged in host memory"

    def traffic(self) -> Traffic:
        return self._inner.traffic()

    def register_landing(self, landing: MemoryRegion) -> None:
        self._inner.register_landing(landing)

    def metadata(self) -> bytes:
        return self._inner.metadata()

    def notifications(self) -> list[bytes]:
        return self._inner.notifications()

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        """Register the staging in the source's place, once."""
        self._staging, self._unit_bytes = self._make_staging(unit_bytes), unit_bytes
        self._num_source_units = source.num_bytes // unit_bytes
        self._inner.register_source(self._staging.region(), unit_bytes)

    def connect(self, peer: PeerLanding) -> None:
        self._inner.connect(peer)
        self._num_landing_units[peer.node] = peer.region.num_bytes // self._unit_bytes

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        num_landing, staging = self._num_landing_units.get(peer), self._staging
        if num_landing is None or staging is None:
            raise TransferFailed(f"{peer} is not connected")
        require_units(source_units, landing_units, self._num_source_units, num_landing)
        if len(source_units) > staging.num_slots:
            raise ValueError(f"a write of {len(source_units)} units is staged in {staging.num_slots} slots")
        write, entry = Write(peer, next(self._numbers)), _Write(peer, source_units.copy(), landing_units.copy(), note)
        self._writes[write] = entry
        self._waiting.append(entry)
        self._advance(staging)
        return write

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        write, entry = Write(peer, next(self._numbers)), _Write(peer, _NO_UNITS, _NO_UNITS, note)
        entry.inner = self._inner.post_probe(peer, landing_offset, pattern, note)
        self._writes[write] = entry
        self._under_way.append(entry)
        return write

    def poll(self, write: Write) -> WriteState:
        if self._staging:
            self._advance(self._staging)
        state = self._writes[write].state
        if state is not WriteState.PENDING:
            del self._writes[write]
        return state

    def forget(self, peer: NodeRef) -> None:
        self._num_landing_units.pop(peer, None)
        self._inner.forget(peer)

    def close(self) -> None:
        self._inner.close()

    def _advance(self, staging: Staging) -> None:
        """Give slots to those who wait, in order, post what is copied, and look after what is posted."""
        for entry in self._under_way:
            self._look_after(entry)
        self._under_way = deque(entry for entry in self._under_way if entry.state is WriteState.PENDING)
        while self._waiting and self._begin(self._waiting[0], staging):
            self._under_way.append(self._waiting.popleft())

    def _begin(self, entry: _Write, staging: Staging) -> bool:
        slots = self._free_slots(len(entry.source_units), staging.num_slots)
        if slots is None:
            return False
        entry.slots, entry.staged = slots, staging.copy(entry.source_units, slots.start)
        self._look_after(entry)
        return True

    def _look_after(self, entry: _Write) -> None:
        if entry.inner is None and entry.staged and entry.staged.is_done():
            slots = np.arange(entry.slots.start, entry.slots.stop, dtype=np.int32)
            try:
                entry.inner = self._inner.post(entry.peer, slots, entry.landing_units, entry.note)
            except TransferFailed:
                # The peer was dropped since: to whoever posted, that shows as a write to a dead one does.
                entry.state = WriteState.FAILED
        if entry.inner is not None and entry.state is WriteState.PENDING:
            entry.state = self._inner.poll(entry.inner)

    def _free_slots(self, num: int, num_slots: int) -> range | None:
        """Return slots in a row that nobody has: first fit. A write that is over, failed or done, has none."""
        taken = sorted((entry.slots.start, entry.slots.stop) for entry in self._under_way if entry.slots)
        start = 0
        for begin, end in taken:
            if begin - start >= num:
                break
            start = max(start, end)
        return range(start, start + num) if start + num <= num_slots else None


_NO_UNITS = np.empty(0, np.int32)
