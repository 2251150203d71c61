"""Which decode nodes this prefill node knows; shakes hands with each in the background until bytes have really moved."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twostep.core.clock import Clock
from twostep.core.errors import (
    FingerprintMismatch,
    NodeUnavailable,
    ServingError,
    StaleLeg,
    TransferFailed,
    UnprovenPair,
    Unsupported,
)
from twostep.core.ids import NodeId, NodeRef
from twostep.core.pace import BandwidthMeter
from twostep.core.threads import Threads
from twostep.kv_transfer.carrier import Carrier
from twostep.kv_transfer.sender import Sender
from twostep.kv_transfer.transport import PeerLanding
from twostep.node.background import Background
from twostep.node.description import Peer, PeerStage, PeerState
from twostep.node.handoff_messages import Hello, HelloReply
from twostep.node.metrics import NodeMetrics
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.leg_record import LegRecord
from twostep.prefill_node.pair_health import Cause, PairHealth

log = logging.getLogger(__name__)
HOPELESS = (FingerprintMismatch, Unsupported)
"""Refusals that no repetition changes while both nodes live."""
LOOK_AGAIN_S = (0.01, 0.1, 1.0)
"""A probe's bytes may become visible a little after its write is done."""


class HandshakeCalls(Protocol):
    """What a prefill node asks of a decode node before it may write to it. Each call raises ServingError."""

    async def hello(self, address: str, hello: Hello) -> HelloReply: ...

    async def probe(self, address: str, source: NodeRef, registration: int, digest: bytes) -> bool:
        """Ask whether the probe has arrived."""


@dataclass(slots=True)
class _Destination:
    peer: Peer
    expires_at: float
    health: PairHealth
    stage: PeerStage = PeerStage.HANDSHAKING
    reason: str = ""
    bytes_per_s: float = 0.0
    carrier: Carrier | None = None
    handoffs: BandwidthMeter = field(default_factory=BandwidthMeter)
    registration: int = 0
    checked_at: float = 0.0
    suspended_until: float = 0.0
    task: asyncio.Task[None] | None = None

    def fail(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("a handshake failed", extra={"peer": str(self.peer.node), "reason": reason})
        self.stage, self.reason = PeerStage.FAILED, reason

    def suspend(self, until: float, reason: str) -> None:
        log.error("a peer is taken out of service", extra={"peer": str(self.peer.node), "reason": reason})
        self.stage, self.reason, self.suspended_until = PeerStage.SUSPENDED, reason, until
        self.health.forgive()

    def prove(self, now: float) -> None:
        log.info(
            "bytes move to a peer",
            extra={"peer": str(self.peer.node), "bytes_per_s": round(self.bytes_per_s), "over": self.carrier},
        )
        self.stage, self.reason, self.checked_at = PeerStage.PROVEN, "", now


class DestinationPeers:
    """At most `config.max_peers` decode nodes, one incarnation of each. A slow handshake delays no other."""

    def __init__(
        self,
        hello: Hello,
        sender: Sender,
        calls: HandshakeCalls,
        background: Background,
        config: PrefillNodeConfig,
        *,
        record: LegRecord,
        metrics: NodeMetrics,
        clock: Clock,
        threads: Threads,
    ) -> None:
        self._hello = hello
        self._sender = sender
        self._calls = calls
        self._background = background
        self._config = config
        self._timers = config.timers
        self._record = record
        self._metrics = metrics
        self._clock = clock
        self._threads = threads
        self._destinations: dict[NodeId, _Destination] = {}

    @property
    def transport(self) -> str:
        return self._hello.transport

    def learn_peers(self, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:
        """Begin a handshake with every node not known yet; a new incarnation replaces the old one at once."""
        expires_at = self._clock() + expires_s
        return tuple(self._meet(peer, expires_at) for peer in peers)

    def require_proven(self, node: NodeRef) -> None:
        """Raises UnprovenPair unless bytes have really moved to this very incarnation, and arrive there unchanged."""
        destination = self._current(node)
        if destination is None or destination.stage is not PeerStage.PROVEN:
            why = (destination and destination.reason) or "no bytes have moved there yet"
            raise UnprovenPair(f"{self._hello.node} sends nothing to decode node {node}: {why}")

    def address_of(self, node: NodeRef) -> str | None:
        destination = self._current(node)
        return destination.peer.handoff_address if destination else None

    def doubt(self, node: NodeRef, reason: str) -> None:
        """Shake hands anew: writes to the node have failed, which may have cost its connection."""
        destination = self._current(node)
        if destination and destination.stage is PeerStage.PROVEN:
            destination.stage, destination.reason = PeerStage.HANDSHAKING, reason
            self._shake_hands(destination)

    def note_handoff(self, node: NodeRef, num_bytes: int, seconds: float) -> None:
        """Learn how fast bytes move there: `seconds` passed with a write of a handoff in flight."""
        if destination := self._current(node):
            destination.handoffs.record(num_bytes, seconds)

    def note_mismatch(self, node: NodeRef) -> None:
        """A copy there never matched although its source is sound: after too many of them it is suspended."""
        destination, now = self._current(node), self._clock()
        if destination is None:
            return
        destination.health.note_mismatch(now)
        if destination.stage is PeerStage.PROVEN and destination.health.is_bad(now):
            limits = self._config.pairs
            reason = f"{limits.max_mismatches} copies in {limits.window_s:g} s did not match what was sent"
            destination.suspend(now + limits.suspended_s, reason)

    def check(self) -> None:
        """Shake hands again with those that were suspended long enough, and ask proven ones whether they still know this node.

        For the timer. A node that was restarted or had to forget peers no longer knows this one.
        """
        now = self._clock()
        for destination in self._destinations.values():
            if destination.stage is PeerStage.SUSPENDED and now >= destination.suspended_until:
                destination.stage = PeerStage.HANDSHAKING
                self._shake_hands(destination)
            elif destination.stage is PeerStage.PROVEN and now - destination.checked_at > self._timers.handshake_s:
                destination.checked_at = now
                self._background.spawn(self._check(destination))

    def states(self) -> tuple[PeerState, ...]:
        return tuple(self._state(destination) for destination in self._destinations.values())

    def expire(self, in_use: Collection[NodeRef]) -> None:
        """Forget nodes that no router has named for as long as it asked, unless a leg needs them."""
        now = self._clock()
        for destination in list(self._destinations.values()):
            if destination.expires_at < now and destination.peer.node not in in_use:
                self._forget(destination)
                for cause in Cause:
                    self._metrics.pair_mismatches.remove(destination.peer.node.id, cause)

    def _meet(self, peer: Peer, expires_at: float) -> PeerState:
        known = self._destinations.get(peer.node.id)
        if known and known.peer == peer:
            known.expires_at = max(known.expires_at, expires_at)
            return self._state(known)
        if known:
            self._forget(known)
        if len(self._destinations) >= self._config.max_peers:
            return PeerState(peer.node, PeerStage.FAILED, f"this node knows {self._config.max_peers} peers and meets no more")
        destination = _Destination(peer, expires_at, PairHealth(self._config.pairs))
        self._destinations[peer.node.id] = destination
        self._shake_hands(destination)
        return self._state(destination)

    def _shake_hands(self, destination: _Destination) -> None:
        destination.task = self._background.spawn_daemon(self._prove(destination))

    async def _prove(self, destination: _Destination) -> None:
        """Try until the node is proven, or refuses for good."""
        while True:
            try:
                async with asyncio.timeout(self._timers.handshake_s):
                    await self._handshake(destination)
            except HOPELESS as error:
                destination.fail(error.message)
                return
            except ServingError as error:
                destination.fail(error.message)
            except TimeoutError:
                destination.fail(f"no handshake within {self._timers.handshake_s:g} s")
            else:
                destination.prove(self._clock())
                return
            await asyncio.sleep(self._timers.handshake_retry_s)

    async def _check(self, destination: _Destination) -> None:
        node, address = destination.peer.node, destination.peer.handoff_address
        try:
            knows_us = await self._calls.probe(address, self._hello.node, destination.registration, b"")
        except StaleLeg:
            knows_us = False
        except ServingError:
            # It does not answer: its own state, not this node's. Legs towards it have their timers.
            return
        if not knows_us:
            self.doubt(node, f"{node} has forgotten this node")

    async def _handshake(self, destination: _Destination) -> None:
        """Introduce this node, connect, write a probe and wait until it is seen."""
        own, node, address = self._hello, destination.peer.node, destination.peer.handoff_address
        reply = await self._calls.hello(address, own)
        if reply.node != node:
            raise NodeUnavailable(f"{address} is {reply.node}, not {node}")
        own.fingerprint.require_equal(reply.fingerprint, here=str(own.node), there=str(node))
        self._record.meet(node, reply.generation)
        landing = PeerLanding(node, reply.transport_metadata, reply.landing, reply.registration)
        await asyncio.wrap_future(self._threads.call(f"connect-{node.id}", lambda: self._sender.connect(landing)))
        probe = await asyncio.wrap_future(self._sender.probe(node, reply.probe_offset, reply.probe_bytes))
        destination.carrier = probe.carrier
        if probe.carrier is Carrier.TCP and not self._config.allow_tcp:
            raise TransferFailed(f"KV to {node} goes over TCP, and allow_tcp is false")
        for pause_s in LOOK_AGAIN_S:
            if await self._calls.probe(address, own.node, reply.registration, probe.digest):
                destination.bytes_per_s, destination.registration = probe.bytes_per_s, reply.registration
                return
            await asyncio.sleep(pause_s)
        raise TransferFailed(f"the probe was written, but {node} does not see it")

    def _forget(self, destination: _Destination) -> None:
        node = destination.peer.node
        del self._destinations[node.id]
        self._record.forget(node)
        if destination.task:
            destination.task.cancel()
        self._background.spawn(self._drop(node))

    async def _drop(self, node: NodeRef) -> None:
        await asyncio.wrap_future(self._threads.call(f"forget-{node.id}", lambda: self._sender.forget(node)))

    def _current(self, node: NodeRef) -> _Destination | None:
        destination = self._destinations.get(node.id)
        return destination if destination and destination.peer.node == node else None

    def _state(self, destination: _Destination) -> PeerState:
        path = "/".join(filter(None, (self._hello.transport, destination.carrier)))
        bytes_per_s = destination.handoffs.bytes_per_s or destination.bytes_per_s
        return PeerState(destination.peer.node, destination.stage, destination.reason, path, bytes_per_s)
