"""Answers the router's questions about a node, at once, whatever the engine is doing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from twostep.core.block_news import BlockNews
from twostep.core.errors import Cancelled, ServingError
from twostep.core.ids import Incarnation, NodeRef, RequestId
from twostep.engine.engine import Engine
from twostep.engine.ledger import Ledger
from twostep.engine.ledger import LedgerEntry as EngineEntry
from twostep.node.description import LedgerEntry, NodeDescription, NodeLedger, NodeStatus, Peer, PeerState
from twostep.node.leases import Heartbeat, Leases
from twostep.node.metrics import NodeMetrics
from twostep.node.pace_meter import PaceMeter
from twostep.node.readiness import Readiness
from twostep.node.trace import NodeTrace, Tracer


class Requests(Protocol):
    """The requests of a node, in whatever phase."""

    def stop(self, request: RequestId, reason: ServingError) -> bool:
        """End a request; returns whether it was here."""

    def waiting_tokens(self) -> list[int]:
        """Return the number of tokens of each request that waits for memory."""


class Peers(Protocol):
    """The nodes that this one exchanges KV with."""

    @property
    def transport(self) -> str: ...

    def learn_peers(self, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:
        """Learn the peers that a router knows; handshakes run in the background."""

    def states(self) -> tuple[PeerState, ...]: ...


def _draws_too_little(beat: Heartbeat) -> None:
    """A prefill node draws one token for each request: nothing to pause."""
    del beat


@dataclass(frozen=True, slots=True)
class NodeControl:
    """What routers, and people, may ask of any node, in the core's terms. All methods are the control thread's.

    `growth_tokens` is the room for output that this node needs beside a prompt.
    """

    node: NodeRef
    engine: Engine
    requests: Requests
    peers: Peers
    leases: Leases
    readiness: Readiness
    metrics: NodeMetrics
    pace: PaceMeter
    growth_tokens: int
    ledger: Callable[[], NodeLedger]
    tracer: Tracer
    hold: Callable[[Heartbeat], None] = _draws_too_little
    """Pauses the requests that a heartbeat holds, and lets the router's others go on."""

    def describe(self) -> NodeDescription:
        runner = self.engine.runner
        return NodeDescription(
            not_ready_reason=self.readiness.reason,
            transport=self.peers.transport,
            fingerprint=runner.fingerprint,
            geometry=runner.geometry,
            num_blocks=runner.kv.num_blocks,
            max_prompt_tokens=self.engine.max_prompt_tokens(self.growth_tokens),
            kernels=runner.kernels,
        )

    def learn_peers(self, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:
        return self.peers.learn_peers(peers, expires_s)

    def hear(self, beat: Heartbeat) -> tuple[RequestId, ...]:
        """Renew a router's lease, end what it abandoned, and return the ids it lists that are not here."""
        verdict = self.leases.hear(beat)
        if verdict.is_stale:
            self.metrics.noop_messages.labels("heartbeat", "late").inc()
        for request in verdict.abandoned:
            self.requests.stop(request, Cancelled(f"router {beat.router} no longer lists request {request}"))
        if not verdict.is_stale:
            self.hold(beat)
        return verdict.unknown

    def cancel(self, request: RequestId, reason: ServingError) -> bool:
        """End a request in whatever phase; returns whether it was known."""
        known = self.requests.stop(request, reason)
        if not known:
            self.metrics.noop_messages.labels("cancel", "unknown").inc()
        return known

    def cordon(self, reason: str) -> None:
        """Take the node out of service: what runs goes on, what comes is sent elsewhere at once. No reason: back into it."""
        self.readiness.cordon = reason

    def block_news(self, incarnation: Incarnation, first: int) -> BlockNews:
        """Return how the prefix cache has changed for a router that has followed it in `incarnation` up to event `first`."""
        return self.engine.block_news(first if incarnation == self.node.incarnation else -1)

    def trace(self, within_s: float | None) -> NodeTrace:
        """Return what the node did lately, or in the last `within_s` seconds."""
        return self.tracer.read(self.node, within_s)

    def status(self) -> NodeStatus:
        load, blocks, waiting = self.engine.load(), self.engine.occupancy(), self.requests.waiting_tokens()
        return NodeStatus(
            node=self.node,
            not_ready_reason=self.readiness.reason,
            step=load.num_steps,
            num_running=load.num_running,
            num_waiting=load.num_waiting + len(waiting),
            queued_tokens=load.queued_tokens + sum(waiting),
            free_blocks=blocks.free,
            cached_blocks=blocks.cached,
            referenced_blocks=blocks.referenced,
            total_blocks=blocks.total,
            peers=self.peers.states(),
            waiting_tokens=sum(waiting),
            block_hold_s=self.engine.supplies().blocks.mean_hold_s or 0.0,
            prefill_rates=self.pace.prefill.points,
            step_pace=self.pace.step.pace,
        )


def block_ledger(node: NodeRef, ledger: Ledger, entry_of: Callable[[EngineEntry], LedgerEntry]) -> NodeLedger:
    """Return who holds which blocks; `entry_of` adds to what the engine knows of a request what the node knows."""
    census = ledger.census
    return NodeLedger(
        node=node,
        free_blocks=census.free,
        cached_blocks=census.cached,
        referenced_blocks=census.referenced,
        total_blocks=census.total,
        orphaned_blocks=census.orphaned,
        entries=tuple(map(entry_of, ledger.entries)),
    )
