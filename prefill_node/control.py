"""Answers the router's questions about a prefill node."""

from collections.abc import Sequence

from twostep.core.errors import Cancelled, ServingError
from twostep.core.ids import RequestId, RouterId
from twostep.node.description import LedgerEntry, NodeDescription, NodeLedger, NodeStatus, Peer, PeerState
from twostep.node.leases import Heartbeat
from twostep.node.readiness import Readiness
from twostep.prefill_node.legs import Legs
from twostep.prefill_node.parts import Parts


class PrefillControl:
    """Implements `NodeControl`."""

    def __init__(self, parts: Parts, legs: Legs, readiness: Readiness) -> None:
        self._parts = parts
        self._legs = legs
        self._readiness = readiness

    def describe(self) -> NodeDescription:
        runner = self._parts.engine.runner
        return NodeDescription(
            not_ready_reason=self._readiness.reason,
            transport=self._parts.peers.transport,
            fingerprint=runner.fingerprint,
            geometry=runner.geometry,
            num_blocks=runner.kv.num_blocks,
            max_prompt_tokens=self._parts.engine.max_prompt_tokens(0),
        )

    def learn_peers(self, router: RouterId, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:  # noqa: ARG002
        return self._parts.peers.learn_peers(peers, expires_s)

    def hear(self, beat: Heartbeat) -> tuple[RequestId, ...]:
        verdict = self._parts.leases.hear(beat)
        if verdict.is_stale:
            self._parts.metrics.noop_messages.labels("heartbeat").inc()
        for request in verdict.abandoned:
            self._legs.stop(request, Cancelled(f"router {beat.router} no longer lists request {request}"))
        return verdict.unknown

    def cancel(self, request: RequestId, reason: ServingError) -> bool:
        known = self._legs.stop(request, reason)
        if not known:
            self._parts.metrics.noop_messages.labels("cancel").inc()
        return known

    def status(self) -> NodeStatus:
        load, census, waiting = self._parts.engine.load(), self._parts.engine.census(), self._legs.waiting
        return NodeStatus(
            node=self._parts.node,
            not_ready_reason=self._readiness.reason,
            step=load.num_steps,
            num_running=load.num_running,
            num_waiting=load.num_waiting + len(waiting),
            queued_tokens=load.queued_tokens + sum(len(leg.order.request.tokens) for leg in waiting),
            free_blocks=census.free,
            cached_blocks=census.cached,
            referenced_blocks=census.referenced,
            total_blocks=census.total,
            peers=self._parts.peers.states(),
        )

    def ledger(self) -> NodeLedger:
        ledger = self._parts.engine.ledger()
        return NodeLedger(
            node=self._parts.node,
            free_blocks=ledger.census.free,
            cached_blocks=ledger.census.cached,
            referenced_blocks=ledger.census.referenced,
            total_blocks=ledger.census.total,
            orphaned_blocks=ledger.census.orphaned,
            entries=tuple(
                LedgerEntry(one.owner, self._phase(one.owner, one.phase), one.age_s, one.blocks) for one in ledger.entries
            ),
        )

    def _phase(self, request: RequestId, phase: str) -> str:
        """The engine's phase and that of the leg."""
        return ", leg ".join([phase, *(leg.phase for leg in self._legs.of(request))])
