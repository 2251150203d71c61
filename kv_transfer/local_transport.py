"""The same-process twin of a real transport: nodes that share one `LocalFabric` write into each other's memory by address."""

import ctypes
import itertools
import threading
from collections import deque
from dataclasses import dataclass, field

from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic
from twostep.kv_transfer.transport import PeerLanding, Units, Write, WriteState, require_units


@dataclass(slots=True)
class _Landing:
    region: MemoryRegion
    notes: deque[bytes] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Link:
    source: MemoryRegion
    landing: MemoryRegion


class LocalFabric:
    """What the nodes of one process share: who lets whom write where."""

    def __init__(self) -> None:
        self._landings: dict[NodeRef, _Landing] = {}
        self._lock = threading.Lock()

    def open(self, node: NodeRef, region: MemoryRegion) -> None:
        with self._lock:
            self._landings[node] = _Landing(region)

    def close(self, node: NodeRef) -> None:
        """Take the node's landing pool away; no write into it is running any more when this returns."""
        with self._lock:
            self._landings.pop(node, None)

    def region(self, node: NodeRef) -> MemoryRegion | None:
        landing = self._landings.get(node)
        return landing.region if landing else None

    def write(self, node: NodeRef, copies: list[tuple[int, int, int]], note: bytes) -> bool:
        """Copy each (from address, to address, bytes), then leave the note. Returns False when the node is gone."""
        with self._lock:
            landing = self._landings.get(node)
            if landing is None:
                return False
            for source, destination, num_bytes in copies:
                ctypes.memmove(destination, source, num_bytes)
            if note:
                landing.notes.append(note)
            return True

    def take_notes(self, node: NodeRef) -> list[bytes]:
        with self._lock:
            landing = self._landings.get(node)
            notes = list(landing.notes) if landing else []
            if landing:
                landing.notes.clear()
            return notes


class LocalTransport:
    """Implements `Transport` between nodes of one process. Host memory only."""

    name = "local"

    def __init__(self, fabric: LocalFabric, node: NodeRef) -> None:
        self._fabric = fabric
        self._node = node
        self._source: MemoryRegion | None = None
        self._unit_bytes = 0
        self._links: dict[NodeRef, _Link] = {}
        self._finished: dict[Write, WriteState] = {}
        self._numbers = itertools.count()

    @property
    def path(self) -> str:
        return self.name

    def traffic(self) -> Traffic:
        return Traffic()

    def register_landing(self, landing: MemoryRegion) -> None:
        self._fabric.open(self._node, _on_host(landing))

    def metadata(self) -> bytes:
        if self._fabric.region(self._node) is None:
            raise ValueError("no landing memory is registered")
        return str(self._node).encode()

    def notifications(self) -> list[bytes]:
        return self._fabric.take_notes(self._node)

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        self._source, self._unit_bytes = _on_host(source), unit_bytes

    def connect(self, peer: PeerLanding) -> None:
        if self._source is None:
            raise ValueError("no source memory is registered")
        registered = self._fabric.region(peer.node)
        if registered is None or peer.metadata != str(peer.node).encode():
            raise TransferFailed(f"{peer.node} cannot be reached in this process")
        if not _contains(registered, peer.region):
            raise TransferFailed(f"{peer.node} has not registered the landing memory that it names")
        self._links[peer.node] = _Link(self._source, peer.region)

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        link, size = self._link(peer), self._unit_bytes
        require_units(source_units, landing_units, link.source.num_bytes // size, link.landing.num_bytes // size)
        pairs = zip(source_units.tolist(), landing_units.tolist(), strict=True)
        copies = [(link.source.address + a * size, link.landing.address + b * size, size) for a, b in pairs]
        return self._finish(peer, self._fabric.write(peer, copies, note))

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        target = self._link(peer).landing.slice(landing_offset, len(pattern))
        staged = ctypes.create_string_buffer(pattern, len(pattern))
        copies = [(ctypes.addressof(staged), target.address, len(pattern))]
        return self._finish(peer, self._fabric.write(peer, copies, note))

    def poll(self, write: Write) -> WriteState:
        return self._finished.pop(write)

    def forget(self, peer: NodeRef) -> None:
        self._links.pop(peer, None)

    def close(self) -> None:
        self._fabric.close(self._node)
        self._links.clear()

    def _link(self, peer: NodeRef) -> _Link:
        link = self._links.get(peer)
        if link is None:
            raise TransferFailed(f"{peer} is not connected")
        return link

    def _finish(self, peer: NodeRef, landed: bool) -> Write:
        write = Write(peer, next(self._numbers))
        self._finished[write] = WriteState.DONE if landed else WriteState.FAILED
        return write


def _on_host(region: MemoryRegion) -> MemoryRegion:
    if region.kind != "DRAM":
        raise ValueError(f"the local transport moves host memory only, not {region.kind}")
    return region


def _contains(outer: MemoryRegion, inner: MemoryRegion) -> bool:
    start = inner.address - outer.address
    return start >= 0 and start + inner.num_bytes <= outer.num_bytes
