"""All nodes of this router: who is ready, who has proven whom, and where each request's events go."""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from twostep.core.clock import Clock
from twostep.core.errors import ServingError
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.router.config import RouterConfig
from twostep.router.node_client import NodeClient
from twostep.router.node_connection import NodeConnection
from twostep.router.node_view import NodeDescription, Peer, PeerState
from twostep.router.placement import Pool

log = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 2.0


def new_router_id(config: RouterConfig) -> RouterId:
    """Return a name that no router had before: a node takes a lower heartbeat number for an old message."""
    return RouterId(f"{config.router_id or socket.gethostname()}-{secrets.token_hex(4)}")


class NodePool:
    """An async context: inside it every node is kept connected."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        clock: Clock = time.monotonic,
        new_client: Callable[[str, RouterId], NodeClient] = NodeClient,
    ) -> None:
        self._tasks = asyncio.TaskGroup()
        self._changed = asyncio.Event()
        router = new_router_id(config)

        def connect(address: str, role: str) -> NodeConnection:
            peers = self._decode_peers if role == "prefill" else self._prefill_peers
            client = new_client(address, router)
            return NodeConnection(client, role, config, peers, clock=clock, on_change=self._note_change)

        self._prefill = [connect(address, "prefill") for address in config.prefill]
        self._decode = [connect(address, "decode") for address in config.decode]
        self._connections: list[asyncio.Task[None]] = []

    @property
    def nodes(self) -> list[NodeConnection]:
        return [*self._prefill, *self._decode]

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._connections = [self._tasks.create_task(node.run()) for node in self.nodes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.cancel()
        await self._tasks.__aexit__(kind, error, trace)
        for node in self.nodes:
            await node.client.close()

    def ready(self) -> Pool:
        """Return the nodes that requests may be placed on now."""
        return Pool(
            [node.view() for node in self._prefill if node.is_ready], [node.view() for node in self._decode if node.is_ready]
        )

    def _note_change(self) -> None:
        self._changed.set()
        for node in self.nodes:
            node.wake()

    async def change(self) -> None:
        """Wait until something has been heard of a node."""
        self._changed.clear()
        await self._changed.wait()

    def find(self, ref: NodeRef) -> NodeConnection | None:
        """Return the connection to this life of the node; None when it has ended."""
        return next((node for node in self.nodes if node.description and node.description.ref == ref), None)

    def described(self, role: str) -> list[NodeDescription]:
        return [node.description for node in self.nodes if node.role == role and node.description]

    def proven_pairs(self) -> list[tuple[NodeRef, NodeRef, PeerState]]:
        """Return the ready pairs between which bytes have really moved."""
        decode = {node.ref for node in self.ready().decode}
        return [
            (node.description.ref, peer, state)
            for node in self._prefill
            if node.is_ready and node.description and node.status
            for peer, state in node.status.peers.items()
            if state.is_proven and peer in decode
        ]

    def cancel(self, ref: NodeRef, request: RequestId, reason: str) -> asyncio.Task[None] | None:
        """Tell the node, in the background, to end the request. If that fails, the heartbeats no longer list it."""
        node = self.find(ref)
        return self._tasks.create_task(self._cancel(node, request, reason)) if node else None

    async def _cancel(self, node: NodeConnection, request: RequestId, reason: str) -> None:
        try:
            await node.client.cancel(request, reason, timeout_s=CANCEL_TIMEOUT_S)
        except ServingError as error:
            log.warning("cancel failed", extra={"request": request, "node": node.client.address, "reason": error.message})

    def _prefill_peers(self) -> list[Peer]:
        return _peers(self._prefill)

    def _decode_peers(self) -> list[Peer]:
        return _peers(self._decode)


def _peers(nodes: list[NodeConnection]) -> list[Peer]:
    known = [node.description for node in nodes if node.description]
    return [Peer(description.ref, description.handoff_address) for description in known]
