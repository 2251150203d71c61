"""Moves bytes with UCX alone, for clusters without NIXL: what P sends, D receives straight into its landing pool.

P offers a write and sends its bytes as tagged messages; D, which decides where they land, answers when it has all of them.
One lock around everything: the sender's or the receiver's thread polls, others connect peers and forget them.
"""

import ctypes
import itertools
import logging
import secrets
import threading
import time
from dataclasses import dataclass

import numpy as np

from twostep.core.clock import Clock
from twostep.core.errors import ConfigError, TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic, read_traffic
from twostep.kv_transfer.transport import PeerLanding, Units, Write, WriteState, require_units
from twostep.kv_transfer.ucx_arrivals import Arrivals
from twostep.kv_transfer.ucx_environment import what_narrows_ucx
from twostep.kv_transfer.ucx_protocol import (
    ANSWER,
    CONNECTION_BITS,
    NUM_NUMBERS,
    OFFER,
    TOKEN_BYTES,
    Metadata,
    Offer,
    Run,
    WriteId,
    decode_answer,
    decode_metadata,
    encode_metadata,
    encode_offer,
    num_messages,
)
from twostep.kv_transfer.ucx_worker import Bytes, Endpoint, UcxFailure, UcxWorker, messages_of

MAX_STEPS = 64
"""A peer that never rests must not hold the lock for ever."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One run of a write and the bytes for it."""

    run: Run
    content: Bytes


class _Link:
    """One connection to one peer: the way there, and the names of its writes."""

    def __init__(self, endpoint: Endpoint, metadata: Metadata, landing: MemoryRegion) -> None:
        self.endpoint = endpoint
        self.metadata = metadata
        self.landing = landing
        self.start = landing.address - metadata.landing.address
        self._connection = secrets.randbits(CONNECTION_BITS)
        self._first = 0

    def next_id(self, num_messages: int) -> WriteId:
        write_id = WriteId(self._connection, self._first)
        self._first = (self._first + num_messages) % NUM_NUMBERS
        return write_id


@dataclass(slots=True)
class _InFlight:
    link: _Link
    write_id: WriteId
    told: WriteState = WriteState.PENDING

    @property
    def state(self) -> WriteState:
        if self.told is WriteState.PENDING and not self.link.endpoint.is_alive:
            return WriteState.FAILED
        return self.told


class UcxTransport:
    """Implements `Transport` with one UCX worker per node. Host memory only."""

    name = "ucx"

    def __init__(self, node: NodeRef, clock: Clock = time.monotonic) -> None:
        """Start listening. Raises ConfigError, in one line, when UCX is not installed or cannot start."""
        self._node = node
        self._clock = clock
        self._lock = threading.RLock()
        self._sending, self._receiving = UcxWorker(), UcxWorker()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._landing: MemoryRegion | None = None
        self._arrivals: Arrivals | None = None
        self._source: Bytes | None = None
        self._unit_bytes = 0
        self._links: dict[NodeRef, _Link] = {}
        self._in_flight: dict[Write, _InFlight] = {}
        self._awaited: dict[WriteId, _InFlight] = {}
        self._numbers = itertools.count()

    @property
    def path(self) -> str:
        return "/".join((self.name, *what_narrows_ucx()))

    def traffic(self) -> Traffic:
        return read_traffic()

    def register_landing(self, landing: MemoryRegion) -> None:
        self._landing = landing
        self._arrivals = Arrivals(self._receiving, self._sending, _on_host(landing), self._token, self._clock)

    def metadata(self) -> bytes:
        if self._landing is None:
            raise ValueError("no landing memory is registered")
        with self._lock:
            return encode_metadata(Metadata(self._token, self._landing, self._receiving.address()))

    def notifications(self) -> list[bytes]:
        with self._lock:
            self._turn()
            return self._arrivals.advance() if self._arrivals else []

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        num_units = source.num_bytes // unit_bytes
        self._source = _on_host(source)[: num_units * unit_bytes].reshape(num_units, unit_bytes)
        self._unit_bytes = unit_bytes

    def connect(self, peer: PeerLanding) -> None:
        if self._source is None:
            raise ValueError("no source memory is registered")
        try:
            metadata = decode_metadata(peer.metadata)
            if not _contains(metadata.landing, peer.region):
                raise ValueError("it has not registered the landing memory that it names")
            with self._lock:
                self.forget(peer.node)
                self._links[peer.node] = _Link(self._sending.connect(metadata.address), metadata, peer.region)
        except (ValueError, UcxFailure) as cause:
            raise TransferFailed(f"{peer.node} cannot be connected: {cause}") from cause

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        with self._lock:
            link = self._connected(peer)
            assert self._source is not None
            require_units(source_units, landing_units, len(self._source), link.landing.num_bytes // self._unit_bytes)
            return self._send(peer, link, self._pieces(link, source_units, landing_units), note)

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        with self._lock:
            link = self._connected(peer)
            link.landing.slice(landing_offset, len(pattern))
            run = Run(link.start + landing_offset, len(pattern))
            return self._send(peer, link, [_Piece(run, np.frombuffer(pattern, np.uint8))], note)

    def poll(self, write: Write) -> WriteState:
        with self._lock:
            self._turn()
            entry = self._in_flight[write]
            state = entry.state
            if state is not WriteState.PENDING:
                del self._in_flight[write]
                del self._awaited[entry.write_id]
            return state

    def forget(self, peer: NodeRef) -> None:
        with self._lock:
            link = self._links.pop(peer, None)
            if link is not None:
                link.endpoint.close()

    def close(self) -> None:
        with self._lock:
            for peer in list(self._links):
                self.forget(peer)
            if self._arrivals:
                self._arrivals.close()
                self._arrivals = None
            self._sending.close()
            self._receiving.close()

    def _turn(self) -> None:
        """Let UCX go on for a while. Offers are read after every step: what one announces has a place when it comes."""
        for _ in range(MAX_STEPS):
            if not self._sending.progress() | self._receiving.progress():
                return
            for message in self._receiving.control_messages():
                if message.tag == ANSWER:
                    self._take_answer(message.content)
                elif self._arrivals:
                    self._arrivals.take(message.content)

    def _take_answer(self, message: bytes) -> None:
        try:
            answer = decode_answer(message)
        except ValueError as cause:
            log.warning("an answer was ignored", extra={"reason": str(cause)})
            return
        entry = self._awaited.get(answer.write_id)
        if entry is not None:
            entry.told = WriteState.DONE if answer.has_landed else WriteState.FAILED

    def _connected(self, peer: NodeRef) -> _Link:
        link = self._links.get(peer)
        if link is None:
            raise TransferFailed(f"{peer} is not connected")
        return link

    def _pieces(self, link: _Link, source_units: Units, landing_units: Units) -> list[_Piece]:
        """Return a piece for each run of landing units. One whose source does not lie together is copied together first:
        sent unit by unit, a write of small units takes three times as long."""
        assert self._source is not None
        edges = [0, *(np.flatnonzero(np.diff(landing_units) != 1) + 1), len(landing_units)]
        pieces = []
        for start, end in itertools.pairwise(edges):
            units = source_units[start:end]
            first, lies_together = int(units[0]), bool((np.diff(units) == 1).all())
            rows = self._source[first : first + len(units)] if lies_together else self._source[units]
            run = Run(link.start + int(landing_units[start]) * self._unit_bytes, rows.nbytes)
            pieces.append(_Piece(run, rows.reshape(-1)))
        return pieces

    def _send(self, peer: NodeRef, link: _Link, pieces: list[_Piece], note: bytes) -> Write:
        runs = tuple(piece.run for piece in pieces)
        write, write_id = Write(peer, next(self._numbers)), link.next_id(sum(map(num_messages, runs)))
        offer = encode_offer(Offer(write_id, link.metadata.token, self._receiving.address(), note, runs))
        self._in_flight[write] = self._awaited[write_id] = entry = _InFlight(link, write_id)
        try:
            link.endpoint.send(np.frombuffer(offer, np.uint8), OFFER)
            for index, content in enumerate(itertools.chain.from_iterable(messages_of(piece.content) for piece in pieces)):
                link.endpoint.send(content, write_id.tag(index))
        except UcxFailure as cause:
            log.warning("write could not be posted", extra={"peer": str(peer), "reason": str(cause)})
            entry.told = WriteState.FAILED
        return write


def _on_host(region: MemoryRegion) -> Bytes:
    if region.kind != "DRAM":
        raise ConfigError(f"transport: ucx moves host memory only, and this node's KV is in {region.kind}: use nixl")
    return np.frombuffer(memoryview((ctypes.c_uint8 * region.num_bytes).from_address(region.address)), np.uint8)


def _contains(outer: MemoryRegion, inner: MemoryRegion) -> bool:
    start = inner.address - outer.address
    return start >= 0 and start + inner.num_bytes <= outer.num_bytes
