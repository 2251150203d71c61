"""The prefill node's half of the handoff: posts pushed pieces, looks after the writes in flight, on a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from twostep.core.clock import Clock
from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ids import BlockId, NodeRef
from twostep.core.kv_memory import KVMemory
from twostep.core.threads import OWN_THREADS, Pause, Threads
from twostep.core.ticket import Ticket, TokenRange
from twostep.kv_transfer.flights import Flights
from twostep.kv_transfer.notes import LandedNote, encode_note
from twostep.kv_transfer.outgoing import LegReport, OutgoingLeg
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.probe import OutgoingProbe, ProbeResult
from twostep.kv_transfer.push_plan import PushPlan, UnitMap
from twostep.kv_transfer.transport import PeerLanding, Transport, Write, WriteState

__all__ = ["LegReport", "OutgoingLeg", "ProbeResult", "Sender"]

MAX_WRITE_BYTES = 32 << 20
"""Over shared memory the copy happens inside the post; a longer write is cut so that legs take turns."""
POLL_S = 100e-6


@dataclass(frozen=True, slots=True)
class _Posted:
    leg: OutgoingLeg
    piece: Piece
    num_bytes: int


class Sender:
    """Sends legs over `transport`, whose posting and polling belong to this sender's thread alone.

    `one_write_tokens`: a shorter missing range goes out in one write when all of it has been pushed.
    """

    def __init__(
        self,
        transport: Transport,
        memory: KVMemory,
        *,
        one_write_tokens: int = 0,
        max_write_bytes: int = MAX_WRITE_BYTES,
        clock: Clock = time.monotonic,
        threads: Threads = OWN_THREADS,
    ) -> None:
        self._transport = transport
        self._layout = memory.layout
        self._unit_bytes = memory.layout.layer_block_bytes
        self._num_pool_blocks = memory.region().num_bytes // memory.layout.block_bytes
        self._one_write_tokens = one_write_tokens
        self._max_cells = max(1, max_write_bytes // self._unit_bytes)
        self._clock = clock
        self._lock = threading.Lock()
        self._legs: list[OutgoingLeg] = []
        self._probes: list[OutgoingProbe] = []
        self._writes: dict[Write, _Posted] = {}
        self.flights = Flights(clock)
        self._peers: dict[NodeRef, PeerLanding] = {}
        self._fault: TransferFailed | None = None
        self._loop = threads.loop("kv-sender", self.turn, self._give_up)
        transport.register_source(memory.region(), self._unit_bytes)

    def start(self) -> None:
        """Start the thread. Tests may call `turn` themselves instead."""
        self._loop.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread and every leg that is still open; returns whether the thread has ended in time.

        While it has not, it may still be using the transport.
        """
        has_ended = self._loop.stop(timeout_s)
        self._give_up(TransferFailed("the sender has stopped"))
        return has_ended

    def connect(self, peer: PeerLanding) -> None:
        """Prepare writes to `peer`, on the caller's thread; blocks. Writes in flight to the same node fail.

        Raises TransferFailed.
        """
        self._transport.connect(peer)
        self._peers[peer.node] = peer

    def forget(self, peer: NodeRef) -> None:
        """Drop `peer`; its legs fail, the others go on."""
        self._peers.pop(peer, None)
        self._transport.forget(peer)
        self._loop.wake()

    def probe(self, peer: NodeRef, landing_offset: int, num_bytes: int) -> "Future[ProbeResult]":
        """Write a random pattern into the peer's probe extent; the future may raise TransferFailed."""
        probe = OutgoingProbe(peer, landing_offset, num_bytes, self._clock)
        with self._open_for_business():
            self._probes.append(probe)
        return probe.outcome

    def open(self, ticket: Ticket, table: Sequence[BlockId], on_written: Callable[[Piece], None] | None = None) -> OutgoingLeg:
        """Begin the leg that `ticket` grants; `table` is the request's whole block table here, from position 0.

        `on_written` hears of every write that is done, on the sender's thread: what a ring's `Landed` message reports.
        Raises ValueError when ticket, table and this node's layout do not fit together, StaleLeg for another registration of
        the landing pool, TransferFailed for a node that is not connected and after a fault.
        """
        num_slots = ticket.extent.num_slots
        blocks = self._source_blocks(ticket.missing, table)
        units = UnitMap(blocks, self._num_pool_blocks, self._first_unit(ticket), num_slots)
        held = len(ticket.missing) < self._one_write_tokens
        plan = PushPlan(self._layout.num_layers, len(blocks), num_slots, max_cells=self._max_cells, held=held)
        leg = OutgoingLeg(ticket, plan, units, wake=self._loop.wake, clock=self._clock, on_written=on_written)
        with self._open_for_business():
            self._legs.append(leg)
        return leg

    @property
    def fault(self) -> TransferFailed | None:
        """Return why this sender sends no more, or None while it does."""
        return self._fault

    def turn(self) -> Pause:
        """Post at most one piece of each leg, poll everything in flight, settle what has ended. Never waits."""
        legs, probes = self._snapshot()
        num_posted = sum(self._post_next(leg) for leg in legs)
        self._poll_all()
        over = [leg for leg in legs if leg.settle()]
        proven = [probe for probe in probes if probe.advance(self._transport)]
        self._remove(over, proven)
        if num_posted or len(over) + len(proven):
            return 0
        return POLL_S if self._writes or probes else None

    def _source_blocks(self, missing: TokenRange, table: Sequence[BlockId]) -> tuple[BlockId, ...]:
        size = self._layout.block_tokens
        blocks = tuple(table[missing.start // size : -(-missing.end // size)])
        if missing.start % size or not 0 < self._layout.num_blocks(len(missing)) == len(blocks):
            raise ValueError(f"{missing} does not match {len(table)} blocks of {size} tokens")
        if not 0 <= min(blocks) <= max(blocks) < self._num_pool_blocks:
            raise ValueError(f"blocks {min(blocks)}..{max(blocks)} lie outside a pool of {self._num_pool_blocks}")
        return blocks

    def _first_unit(self, ticket: Ticket) -> int:
        """Return where the ticket's extent starts in units of the landing pool."""
        extent, peer = ticket.extent, self._peers.get(ticket.leg.destination)
        if peer is None:
            raise TransferFailed(f"{ticket.leg.destination} is not connected")
        if ticket.registration != peer.registration:
            raise StaleLeg(f"the ticket is for registration {ticket.registration}, {peer.node} has {peer.registration}")
        num_units = extent.num_slots * self._layout.num_layers
        if extent.num_slots < 1 or extent.num_bytes != num_units * self._unit_bytes or extent.offset % self._unit_bytes:
            raise ValueError(f"{extent} is not {self._layout.num_layers} layers of slots of {self._unit_bytes} bytes")
        peer.region.slice(extent.offset, extent.num_bytes)
        return extent.offset // self._unit_bytes

    def _post_next(self, leg: OutgoingLeg) -> bool:
        piece = leg.take()
        if piece is None:
            return False
        ticket = leg.ticket
        note = encode_note(LandedNote(ticket.leg, ticket.extent.generation, piece))
        try:
            write = self._transport.post(ticket.leg.destination, *leg.units.units(piece), note)
        except TransferFailed as cause:
            leg.not_posted(cause)
        except ValueError as cause:
            leg.not_posted(TransferFailed(f"request {ticket.leg.request}: {cause}"))
        else:
            self._writes[write] = _Posted(leg, piece, len(piece) * self._unit_bytes)
            self.flights.posted(write.peer)
        return True

    def _poll_all(self) -> None:
        for write, posted in list(self._writes.items()):
            state = self._transport.poll(write)
            if state is WriteState.PENDING:
                continue
            del self._writes[write]
            self.flights.ended(write.peer)
            if state is WriteState.DONE:
                self._written(posted)
            else:
                request = posted.leg.ticket.leg.request
                posted.leg.failed(TransferFailed(f"request {request}: a write to {write.peer} has failed"))

    def _written(self, posted: _Posted) -> None:
        posted.leg.done(posted.num_bytes)
        if posted.leg.on_written:
            posted.leg.on_written(posted.piece)

    @contextmanager
    def _open_for_business(self) -> Iterator[None]:
        with self._lock:
            if self._fault:
                raise self._fault
            yield
        self._loop.wake()

    def _snapshot(self) -> tuple[list[OutgoingLeg], list[OutgoingProbe]]:
        with self._lock:
            return list(self._legs), list(self._probes)

    def _remove(self, over: list[OutgoingLeg], proven: list[OutgoingProbe]) -> None:
        if over or proven:
            with self._lock:
                self._legs = [leg for leg in self._legs if leg not in over]
                self._probes = [probe for probe in self._probes if probe not in proven]

    def _give_up(self, cause: Exception) -> None:
        """Fail everything that is open: whoever waits must not wait for a thread that is gone."""
        fault = cause if isinstance(cause, TransferFailed) else TransferFailed(f"the sender has failed: {cause}")
        fault.__cause__ = None if fault is cause else cause
        with self._lock:
            self._fault = fault
            legs, self._legs = self._legs, []
            probes, self._probes = self._probes, []
        for leg in legs:
            leg.give_up(fault)
        for probe in probes:
            if not probe.outcome.done():
                probe.outcome.set_exception(fault)
