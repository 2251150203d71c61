"""Answers the router's questions about a decode node."""

from collections.abc import Sequence

from twostep.core.errors import Cancelled, ServingError
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.decode_node.parts import Parts
from twostep.decode_node.reservation_queue import ReservationQueue
from twostep.decode_node.source_peers import SourcePeers
from twostep.kv_transfer.landing import Loan
from twostep.node.description import LedgerEntry, NodeDescription, NodeLedger, NodeStatus, Peer, PeerState
from twostep.node.leases import Heartbeat
from twostep.node.readiness import Readiness


class DecodeControl:
    """Implements `NodeControl`."""

    def __init__(self, parts: Parts, queue: ReservationQueue, peers: SourcePeers, readiness: Readiness) -> None:
        self._parts = parts
        self._queue = queue
        self._peers = peers
        self._readiness = readiness

    def describe(self) -> NodeDescription:
        runner = self._parts.engine.runner
        return NodeDescription(
            not_ready_reason=self._readiness.reason,
            transport=self._peers.transport,
            fingerprint=runner.fingerprint,
            geometry=runner.geometry,
            num_blocks=runner.kv.num_blocks,
            max_prompt_tokens=self._parts.engine.max_prompt_tokens(self._queue.growth_tokens),
        )

    def learn_peers(self, router: RouterId, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:  # noqa: ARG002
        return self._peers.learn_peers(peers, expires_s)

    def hear(self, beat: Heartbeat) -> tuple[RequestId, ...]:
        verdict = self._parts.leases.hear(beat)
        if verdict.is_stale:
            self._parts.metrics.noop_messages.labels("heartbeat").inc()
        for request in verdict.abandoned:
            self._queue.end(request, Cancelled(f"router {beat.router} no longer lists request {request}"))
        return verdict.unknown

    def cancel(self, request: RequestId, reason: ServingError) -> bool:
        known = self._queue.end(request, reason)
        if not known:
            self._parts.metrics.noop_messages.labels("cancel").inc()
        return known

    def status(self) -> NodeStatus:
        load, census, waiting = self._parts.engine.load(), self._parts.engine.census(), self._queue.waiting
        return NodeStatus(
            node=self._parts.node,
            not_ready_reason=self._readiness.reason,
            step=load.num_steps,
            num_running=load.num_running,
            num_waiting=load.num_waiting + len(waiting),
            queued_tokens=load.queued_tokens + sum(len(handoff.order.request.tokens) for handoff in waiting),
            free_blocks=census.free,
            cached_blocks=census.cached,
            referenced_blocks=census.referenced,
            total_blocks=census.total,
            peers=self._peers.states(),
        )

    def ledger(self) -> NodeLedger:
        ledger, landing = self._parts.engine.ledger(), self._parts.landing.census()
        blocks = tuple(
            LedgerEntry(one.owner, self._phase(one.owner, one.phase), one.age_s, one.blocks) for one in ledger.entries
        )
        extents = tuple(self._extent(loan) for loan in self._parts.landing.ledger())
        return NodeLedger(
            node=self._parts.node,
            free_blocks=ledger.census.free,
            cached_blocks=ledger.census.cached,
            referenced_blocks=ledger.census.referenced,
            total_blocks=ledger.census.total,
            orphaned_blocks=ledger.census.orphaned,
            landing_bytes=landing.total_bytes,
            landing_free_bytes=landing.free_bytes,
            entries=blocks + extents,
        )

    def _phase(self, request: RequestId, phase: str) -> str:
        """A reservation is known more exactly by the handoff's state."""
        handoff = self._parts.handoffs.find(request)
        return f"{phase}, handoff {handoff.state}" if handoff else phase

    def _extent(self, loan: Loan) -> LedgerEntry:
        owner, extent = loan.owner, loan.extent
        return LedgerEntry(
            owner=str(owner) if isinstance(owner, NodeRef) else f"{owner.request} attempt {owner.attempt}",
            phase=f"landing {loan.phase}",
            age_s=self._parts.clock() - loan.since_s,
            landing_offset=extent.offset,
            landing_bytes=extent.num_bytes,
            generation=extent.generation,
        )
