"""What the router may ask of any node, in the core's terms; both programs answer it."""

from collections.abc import Sequence
from typing import Protocol

from twostep.core.errors import ServingError
from twostep.core.ids import RequestId, RouterId
from twostep.node.description import NodeDescription, NodeLedger, NodeStatus, Peer, PeerState
from twostep.node.leases import Heartbeat


class NodeControl(Protocol):
    """Answered by the control thread at once, whatever the engine is doing."""

    def describe(self) -> NodeDescription: ...

    def learn_peers(self, router: RouterId, peers: Sequence[Peer], expires_s: float) -> tuple[PeerState, ...]:
        """Learn the peers that this router knows; handshakes run in the background."""

    def hear(self, beat: Heartbeat) -> tuple[RequestId, ...]:
        """Renew a router's lease, end what it abandoned, and return the ids it lists that are not here."""

    def cancel(self, request: RequestId, reason: ServingError) -> bool:
        """End a request in whatever phase; returns whether it was known."""

    def status(self) -> NodeStatus: ...

    def ledger(self) -> NodeLedger: ...
