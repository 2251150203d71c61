"""Which prefill nodes this decode node knows, and which of them have proved that their bytes arrive."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from twostep.core.block_hash import HASH_BLOCK_TOKENS
from twostep.core.clock import Clock
from twostep.core.errors import Overloaded, StaleLeg, UnprovenPair, Unsupported
from twostep.core.fingerprint import Geometry
from twostep.core.ids import NodeId, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import OpenMemory
from twostep.core.ticket import LandingExtent
from twostep.kv_transfer.landing import LandingPool, source_layout
from twostep.kv_transfer.probe import probe_digest
from twostep.node.description import Peer, PeerStage, PeerState
from twostep.node.handoff_messages import Hello, HelloReply

log = logging.getLogger(__name__)
MAX_PROBE_BYTES = 1 << 20
PROBE_SHARE = 16
"""A probe takes at most one part in this many of the landing pool."""
HELLO_S = 60.0
"""How long a hello counts before a router has named the node."""


@dataclass(frozen=True, slots=True)
class _Source:
    node: NodeRef
    expires_at: float
    stage: PeerStage = PeerStage.HANDSHAKING
    address: str = ""
    geometry: Geometry | None = None
    probe: LandingExtent | None = None
    has_retried: bool = False
    """Whether an earlier write of the same probe may still be on its way."""

    def state(self, path: str) -> PeerState:
        reason = "" if self.stage is PeerStage.PROVEN else "waits for the prefill node's hello and probe"
        return PeerState(self.node, self.stage, reason, path)


class SourcePeers:
    """At most `max_sources` prefill nodes, one incarnation of each. `reply` is what everybody is told, but for the probe.

    `memory` is what the landing pool lies in.
    """

    def __init__(
        self,
        reply: HelloReply,
        landing: LandingPool,
        memory: OpenMemory,
        layout: KVLayout,
        *,
        max_sources: int,
        clock: Clock,
    ) -> None:
        self._reply = reply
        self._landing = landing
        self._memory = memory
        self._layout = layout
        self._max_sources = max_sources
        self._clock = clock
        self._sources: dict[NodeId, _Source] = {}

    @property
    def transport(self) -> str:
        return self._reply.transport

    def learn_peers(self, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:
        """Expect the peers that a router names, and tell how far each one is. They introduce themselves."""
        expires_at = self._clock() + expires_s
        return tuple(self._expect(peer, expires_at).state(self._reply.transport) for peer in peers)

    def answer_hello(self, hello: Hello) -> HelloReply:
        """Note a prefill node, replacing its earlier incarnation, and lend it a place for its probe.

        Raises FingerprintMismatch, Unsupported or Overloaded.
        """
        node = hello.node
        self._require_compatible(hello)
        self._require_room(node)
        known = self._current(node)
        probe = self._place_for_probe(node)
        self._sources[node.id] = _Source(
            node,
            self._clock() + HELLO_S,
            address=hello.handoff_address,
            geometry=hello.geometry,
            probe=probe,
            has_retried=known is not None and known.probe is probe,
        )
        generation = self._landing.last_generation
        return replace(self._reply, probe_offset=probe.offset, probe_bytes=probe.num_bytes, generation=generation)

    def prove(self, node: NodeRef, registration: int, digest: bytes) -> bool:
        """Compare what lies in the node's probe extent with its digest. Raises StaleLeg for a node not introduced."""
        source = self._current(node)
        if source is None or registration != self._reply.registration:
            raise StaleLeg(f"{node} has not introduced itself here")
        if source.probe is None:
            return source.stage is PeerStage.PROVEN
        arrived = probe_digest(self._memory.read(source.probe.offset, source.probe.num_bytes)) == digest
        if arrived:
            self._landing.give_back(source.probe, proven=not source.has_retried)
            self._sources[node.id] = replace(source, stage=PeerStage.PROVEN, probe=None)
            log.info("bytes arrive from a peer", extra={"peer": str(node)})
        return arrived

    def require_proven(self, node: NodeRef, geometry: Geometry) -> None:
        """Raises UnprovenPair unless this very incarnation has proved that its bytes arrive, in blocks of this geometry."""
        source = self._current(node)
        if source is None or source.stage is not PeerStage.PROVEN:
            raise UnprovenPair(f"prefill node {node} has not yet proved that its bytes arrive at {self._reply.node}")
        if source.geometry != geometry:
            raise UnprovenPair(f"prefill node {node} has told another geometry here: {source.geometry}, not {geometry}")

    def incarnation_of(self, node: NodeId) -> NodeRef | None:
        source = self._sources.get(node)
        return source.node if source else None

    def address_of(self, node: NodeRef) -> str | None:
        """Return where the node serves its side of the handoff, or None when this incarnation is not known."""
        source = self._current(node)
        return source.address if source and source.address else None

    def states(self) -> tuple[PeerState, ...]:
        return tuple(source.state(self._reply.transport) for source in self._sources.values())

    def expire(self, in_use: Collection[NodeRef]) -> None:
        """Forget nodes that no router has named for as long as it asked, unless a handoff needs them."""
        now = self._clock()
        for source in list(self._sources.values()):
            if source.expires_at < now and source.node not in in_use:
                self._remove(source)

    def _place_for_probe(self, node: NodeRef) -> LandingExtent:
        """A node that tries again writes where it wrote before; what an earlier life has borrowed comes back unproven."""
        known = self._current(node)
        if known and known.probe:
            return known.probe
        self._remove(self._sources.get(node.id))
        probe = self._landing.lend(self._probe_bytes, 1, 1, node)
        if probe is None:
            raise Overloaded("no landing space for a probe")
        return probe

    def _expect(self, peer: Peer, expires_at: float) -> _Source:
        known = self._current(peer.node)
        source = replace(known, expires_at=max(known.expires_at, expires_at)) if known else _Source(peer.node, expires_at)
        if known or (peer.node.id not in self._sources and len(self._sources) < self._max_sources):
            self._sources[peer.node.id] = source
        return source

    def _current(self, node: NodeRef) -> _Source | None:
        source = self._sources.get(node.id)
        return source if source and source.node == node else None

    def _remove(self, source: _Source | None) -> None:
        if source is None:
            return
        del self._sources[source.node.id]
        if source.probe:
            self._landing.give_back(source.probe, proven=False)

    def _require_room(self, node: NodeRef) -> None:
        if node.id not in self._sources and len(self._sources) >= self._max_sources:
            raise Overloaded(f"this node knows {self._max_sources} prefill nodes and takes no more")

    def _require_compatible(self, hello: Hello) -> None:
        own, node, geometry = self._reply, hello.node, hello.geometry
        own.fingerprint.require_equal(hello.fingerprint, here=str(own.node), there=str(node))
        heads = (own.geometry.first_head, own.geometry.end_head)
        if (geometry.first_head, geometry.end_head) != heads:
            raise Unsupported(f"{node} holds other KV heads than {heads[0]} to {heads[1]}")
        if hello.transport != own.transport:
            raise Unsupported(f"{node} sends over {hello.transport}, {own.node} receives over {own.transport}")
        if geometry.block_tokens < 1 or geometry.block_tokens % HASH_BLOCK_TOKENS:
            raise Unsupported(f"{node} has blocks of {geometry.block_tokens} tokens, no multiple of {HASH_BLOCK_TOKENS}")
        layout = source_layout(self._layout, geometry)
        if not self._landing.num_slots(layout.layer_block_bytes, layout.num_layers, 1):
            raise Unsupported(f"a block of {node} has {layout.block_bytes} bytes, more than a loan of landing space may have")

    @property
    def _probe_bytes(self) -> int:
        return min(MAX_PROBE_BYTES, self._reply.landing.num_bytes // PROBE_SHARE)
