"""One-sided writes without a network: each lands in pieces at any later time, whatever has become of its writer.

A write that was posted is in other hands: neither the death of its writer, nor a freeze, nor `forget` takes it back.
"""

import ctypes
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from twostep.core.errors import TransferFailed
from twostep.core.ids import Generation, NodeRef
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import Leg
from twostep.kv_transfer.carrier import Traffic
from twostep.kv_transfer.transport import PeerLanding, Units, Write, WriteState, require_units
from twostep.tests.simulator.faults import Fate, FaultPlan
from twostep.tests.simulator.process import Process
from twostep.tests.simulator.world import World

STUCK_S = 8.0
"""After so long a transport gives a write up that nothing is heard of."""
Copy = tuple[int, int, int]
"""From address, to address, bytes."""


@dataclass(slots=True, eq=False)
class Flight:
    """One posted write. `copies` are what has still to land."""

    writer: NodeRef
    target: NodeRef
    note: bytes
    copies: list[Copy]
    fate: Fate | None
    state: WriteState = WriteState.PENDING
    told: bool = False
    """Whether its writer has polled that it is over."""
    keep: object = None
    """What the bytes of a probe lie in."""
    leg: Leg | None = None
    extent: tuple[NodeRef, Generation] | None = None


@dataclass(slots=True)
class _Landing:
    region: MemoryRegion
    process: Process
    is_open: bool = True
    notes: deque[bytes] = field(default_factory=deque)


class Fabric:
    """The landing pools that can be written to, and every write on its way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan: FaultPlan | None = None
        self.flights: list[Flight] = []
        self.on_landing: Callable[[Flight, Copy], None] = lambda flight, copy: None
        self.on_post: Callable[[Flight], None] = lambda flight: None
        self._chance = world.chance("fabric")
        self._landings: dict[NodeRef, _Landing] = {}

    def open(self, node: NodeRef, process: Process, region: MemoryRegion) -> None:
        self._landings[node] = _Landing(region, process)

    def close(self, node: NodeRef) -> None:
        if node in self._landings:
            self._landings[node].is_open = False

    def landing(self, node: NodeRef) -> _Landing | None:
        landing = self._landings.get(node)
        return landing if landing and landing.is_open and not landing.process.is_dead else None

    def post(self, process: Process, flight: Flight) -> None:
        """Let a write land: whole or in pieces, soon or late, as its fate says."""
        fault = self.plan.meet("write") if self.plan else None
        flight.fate = fault.fate if fault else None
        self.world.note(process.name, f"write to {flight.target.id}{f': {flight.fate}' if flight.fate else ''}")
        self.flights.append(flight)
        self.on_post(flight)
        if self.landing(flight.target) is None:
            self.flights.remove(flight)
            process.after(self._soon(), lambda: self._end(process, flight, WriteState.FAILED))
            return
        slow_s = fault.delay_s if fault and fault.fate in (Fate.SLOW, Fate.FAILED_BUT_LANDS, Fate.SEEN_EARLY) else 0.0
        lands_s = self._pieces(flight, slow_s)
        self._settle(process, flight, lands_s, fault.delay_s if fault else 0.0)

    def _pieces(self, flight: Flight, slow_s: float) -> float:
        """Schedule the landing of each piece; returns when the last one has landed."""
        if flight.fate is Fate.FAILED:
            self.flights.remove(flight)
            return self._soon()
        copies = list(flight.copies)
        if self._chance.random() < 0.3:
            self._chance.shuffle(copies)
        num_parts = 1 if self._chance.random() < 0.6 else min(3, len(copies))
        size, last_s = -(-len(copies) // num_parts), 0.0
        for start in range(0, len(copies), size):
            delay_s = self._soon() + (slow_s * self._chance.random() if num_parts > 1 else slow_s)
            last_s = max(last_s, delay_s)
            part = copies[start : start + size]
            self.world.after(delay_s, None, lambda part=part: self._land(flight, part))
        return last_s

    def _settle(self, process: Process, flight: Flight, lands_s: float, delay_s: float) -> None:
        """Schedule what the writer sees and the notification that the reader gets."""
        after_s, fate = lands_s + 1e-5, flight.fate
        if fate is Fate.STUCK:
            process.after(STUCK_S, lambda: self._end(process, flight, WriteState.FAILED))
            return
        if fate in (Fate.FAILED, Fate.FAILED_BUT_LANDS):
            process.after(self._soon(), lambda: self._end(process, flight, WriteState.FAILED))
            return
        done_s = self._soon() if fate is Fate.SEEN_EARLY else after_s + self._soon() * 0.3
        process.after(done_s, lambda: self._end(process, flight, WriteState.DONE))
        if not flight.note or fate is Fate.NOTE_LOST:
            return
        if fate is Fate.NOTE_EARLY or fate is Fate.SEEN_EARLY:
            note_s = min(1e-6, lands_s)
        else:
            note_s = after_s + (delay_s if fate is Fate.NOTE_LATE else 0.0)
        times = (note_s, note_s + 1e-3) if fate is Fate.NOTE_DOUBLED else (note_s,)
        for at_s in times:
            self.world.after(at_s, None, lambda: self._notify(flight))

    def _soon(self) -> float:
        drawn = self._chance.random()
        return drawn * 1e-3 if drawn < 0.95 else 0.05 * self._chance.random()

    def _land(self, flight: Flight, copies: list[Copy]) -> None:
        landing = self.landing(flight.target)
        for copy in copies:
            flight.copies.remove(copy)
            source, destination, num_bytes = copy
            if landing is None:
                continue
            self.on_landing(flight, copy)
            ctypes.memmove(destination, source, num_bytes)
            if flight.fate is Fate.CORRUPT:
                byte = ctypes.c_uint8.from_address(destination + self._chance.randrange(num_bytes))
                byte.value ^= 1 << self._chance.randrange(8)
        if not flight.copies and flight in self.flights:
            self.flights.remove(flight)
        self.world.note(flight.writer.id, f"{len(copies)} units land at {flight.target.id}")

    def _end(self, process: Process, flight: Flight, state: WriteState) -> None:
        if flight.state is WriteState.PENDING:
            flight.state = state
        process.threads.news()

    def _notify(self, flight: Flight) -> None:
        landing = self.landing(flight.target)
        if landing:
            landing.notes.append(flight.note)
            landing.process.after(1e-6, landing.process.threads.news)


@dataclass(frozen=True, slots=True)
class _Link:
    source: MemoryRegion
    landing: MemoryRegion


class SimTransport:
    """Implements `Transport`."""

    name = path = "simulated"

    def __init__(self, fabric: Fabric, process: Process, node: NodeRef) -> None:
        self._fabric = fabric
        self._process = process
        self._node = node
        self._source: MemoryRegion | None = None
        self._unit_bytes = 0
        self._links: dict[NodeRef, _Link] = {}
        self._writes: dict[Write, Flight] = {}
        self._numbers = itertools.count()

    def traffic(self) -> Traffic:
        return Traffic()

    def register_landing(self, landing: MemoryRegion) -> None:
        self._fabric.open(self._node, self._process, landing)

    def metadata(self) -> bytes:
        if self._fabric.landing(self._node) is None:
            raise ValueError("no landing memory is registered")
        return str(self._node).encode()

    def notifications(self) -> list[bytes]:
        landing = self._fabric.landing(self._node)
        if landing is None:
            return []
        notes = list(landing.notes)
        landing.notes.clear()
        return notes

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        self._source, self._unit_bytes = source, unit_bytes

    def connect(self, peer: PeerLanding) -> None:
        if self._source is None:
            raise ValueError("no source memory is registered")
        landing = self._fabric.landing(peer.node)
        if landing is None or peer.metadata != str(peer.node).encode():
            raise TransferFailed(f"{peer.node} cannot be reached")
        start = peer.region.address - landing.region.address
        if start < 0 or start + peer.region.num_bytes > landing.region.num_bytes:
            raise TransferFailed(f"{peer.node} has not registered the landing memory that it names")
        self._links[peer.node] = _Link(self._source, peer.region)

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        link, size = self._link(peer), self._unit_bytes
        require_units(source_units, landing_units, link.source.num_bytes // size, link.landing.num_bytes // size)
        pairs = zip(source_units.tolist(), landing_units.tolist(), strict=True)
        copies = [(link.source.address + a * size, link.landing.address + b * size, size) for a, b in pairs]
        return self._post(peer, copies, note, None)

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        target = self._link(peer).landing.slice(landing_offset, len(pattern))
        staged = ctypes.create_string_buffer(pattern, len(pattern))
        return self._post(peer, [(ctypes.addressof(staged), target.address, len(pattern))], note, staged)

    def poll(self, write: Write) -> WriteState:
        flight = self._writes[write]
        if flight.state is not WriteState.PENDING:
            del self._writes[write]
            flight.told = True
        return flight.state

    def forget(self, peer: NodeRef) -> None:
        self._links.pop(peer, None)
        for write, flight in self._writes.items():
            if write.peer == peer and flight.state is WriteState.PENDING:
                flight.state = WriteState.FAILED
        self._process.threads.news()

    def close(self) -> None:
        self._fabric.close(self._node)
        self._links.clear()

    def _link(self, peer: NodeRef) -> _Link:
        link = self._links.get(peer)
        if link is None:
            raise TransferFailed(f"{peer} is not connected")
        return link

    def _post(self, peer: NodeRef, copies: list[Copy], note: bytes, keep: object) -> Write:
        write = Write(peer, next(self._numbers))
        flight = Flight(self._node, peer, note, copies, None, keep=keep)
        self._writes[write] = flight
        self._fabric.post(self._process, flight)
        return write
