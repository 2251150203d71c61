"""All nodes of this router: who is ready, who has proven whom, and where each request's events go."""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from twostep.core.clock import Clock
from twostep.core.errors import ServingError
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.proto.security import security_of
from twostep.router.config import RouterConfig
from twostep.router.discovery.member import Discovery, Member, Role
from twostep.router.nodes.client import NodeClient
from twostep.router.nodes.connection import NodeConnection
from twostep.router.nodes.peering import Peering
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import NodeDescription, NodeStatus, Peer, PeerState, Typical
from twostep.router.placement.prefix_index import PrefixIndex

log = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 2.0


def new_router_id(config: RouterConfig) -> RouterId:
    """Return a name that no router had before: a node takes a lower heartbeat number for an old message."""
    return RouterId(f"{config.router_id or socket.gethostname()}-{secrets.token_hex(4)}")


class NodePool:
    """An async context: inside it every node that `discovery` names is kept connected.

    A node that is no longer named gets no more requests; its connection ends when it has none left, or is lost with them.
    """

    def __init__(
        self,
        config: RouterConfig,
        discovery: Discovery,
        *,
        clock: Clock = time.monotonic,
        new_client: Callable[[str, RouterId], NodeClient] | None = None,
    ) -> None:
        self.discovery = discovery
        self.prefixes = PrefixIndex(config.prefix_index_bytes)
        self.fleet = Fleet()
        self._config = config
        self._clock = clock
        self._new_client = new_client or _client_factory(config)
        self._router = new_router_id(config)
        self._tasks = asyncio.TaskGroup()
        self._following: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._nodes: dict[Member, NodeConnection] = {}
        self._connections: dict[Member, asyncio.Task[None]] = {}
        self._peering = Peering(config.max_peers)
        self._by_ref: dict[NodeRef, NodeConnection] = {}
        self._names: dict[NodeConnection, NodeRef] = {}
        self.typical = Typical()
        """What nodes have measured lately."""

    @property
    def nodes(self) -> Collection[NodeConnection]:
        return self._nodes.values()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._following = self._tasks.create_task(self._follow_discovery())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (self._following, *self._connections.values()):
            if task:
                task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def _follow_discovery(self) -> None:
        async for members in self.discovery.changes():
            self._update(members)

    def _update(self, members: Sequence[Member]) -> None:
        named = {member: member for member in members}
        for known in [known for known in self._nodes if known not in named]:
            self._nodes[known].retire("it is no longer there")
            self._peering.remove(known)
        for member in named.values():
            self._meet(member)

    def _meet(self, member: Member) -> None:
        """Connect to a node that is new, and take up what has changed about one that is not."""
        if member not in self._nodes:
            self._connect(member)
        node = self._nodes[member]
        if member.is_leaving:
            node.retire("it was told to leave")
            self._peering.remove(member)
        elif node.is_retired or node.member.place != member.place:
            node.welcome(member)
            self._peering.add(member)

    def _connect(self, member: Member) -> None:
        log.info("a node is named", extra={"role": member.role, "address": member.address, "node_id": member.id})
        take_up = partial(self._take_up, member)
        node = NodeConnection(
            self._new_client(member.address, self._router),
            member,
            self._config,
            lambda: self._peers_of(member),
            self.prefixes,
            clock=self._clock,
            on_change=lambda: self._take_up(member, is_news=True),
            on_status=take_up,
            on_load=lambda: self.fleet.before_next_pick(member, take_up),
            on_met=lambda: self._introduce(member),
        )
        self._nodes[member] = node
        self._peering.add(member)
        self._connections[member] = self._tasks.create_task(self._keep(member, node))

    async def _keep(self, member: Member, node: NodeConnection) -> None:
        try:
            await node.run()
            # It may have been named again while its connection ended.
            while not node.is_retired:
                await node.run()
        finally:
            del self._nodes[member], self._connections[member]
            self._forget(node)
            await node.client.close()
        log.info("a node is gone", extra={"role": member.role, "address": member.address, "node_id": member.id})

    def _take_up(self, member: Member, *, is_news: bool = False) -> None:
        """Keep the fleet in step with a node; `is_news` where somebody may wait for what has changed."""
        if is_news:
            self._changed.set()
        node = self._nodes.get(member)
        if node is None or node.description is None:
            return
        if node.is_ready and node.status:
            self.typical = _learnt(self.typical, node.status)
            self.fleet.put(node.view(self.typical))
        else:
            self.fleet.remove(node.description.ref)

    def _introduce(self, member: Member) -> None:
        """Tell those who should know a node that it is there, or lives anew, and it of them."""
        self._changed.set()
        self._know(self._nodes[member])
        self._nodes[member].wake()
        for peer in self._peering.peers_of(member):
            self._nodes[peer].wake()

    def _know(self, node: NodeConnection) -> None:
        """Let a node be found by its present name; its earlier lives are over."""
        self._forget(node)
        if node.description:
            self._names[node] = node.description.ref
            self._by_ref[node.description.ref] = node

    def _forget(self, node: NodeConnection) -> None:
        if (ref := self._names.pop(node, None)) and self._by_ref.get(ref) is node:
            del self._by_ref[ref]
            self.fleet.remove(ref)

    async def change(self) -> None:
        """Wait until something has been heard of a node."""
        self._changed.clear()
        await self._changed.wait()

    def find(self, ref: NodeRef) -> NodeConnection | None:
        """Return the connection to this life of the node; None when it has ended."""
        return self._by_ref.get(ref)

    def described(self, role: Role) -> list[NodeDescription]:
        return [node.description for node in self._of(role) if node.description]

    def proven_pairs(self) -> list[tuple[NodeRef, NodeRef, PeerState]]:
        """Return the ready pairs between which bytes have really moved."""
        decode = {view.ref for view in self.fleet.decode}
        return [
            (node.description.ref, peer, state)
            for node in self._of("prefill")
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

    def _of(self, role: Role) -> list[NodeConnection]:
        return [node for node in self._nodes.values() if node.role == role]

    def _peers_of(self, member: Member) -> list[Peer]:
        known = [self._nodes[peer].description for peer in self._peering.peers_of(member)]
        return [Peer(description.ref, description.handoff_address) for description in known if description]


def _learnt(typical: Typical, status: NodeStatus) -> Typical:
    return Typical(status.prefill_curve or typical.curve, status.step_pace or typical.step)


def _client_factory(config: RouterConfig) -> Callable[[str, RouterId], NodeClient]:
    security = security_of(config.tls)
    return lambda address, router: NodeClient(address, router, security.open_channel)
