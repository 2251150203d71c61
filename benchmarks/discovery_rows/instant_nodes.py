"""Nodes that answer at once, without a network: what is left is the router's own work."""

# ruff: noqa: ARG002 - the signatures are those of what it stands in for

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import cast

from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId, RouterId
from twostep.router.discovery.member import Member
from twostep.router.nodes.client import Beat, Living, NodeClient
from twostep.router.nodes.events import StreamEvent
from twostep.router.placement.node_view import NodeDescription, NodeStatus, Peer, PeerState

PROVEN = PeerState(is_proven=True, state="proven", reason="", path="nixl", bytes_per_s=1e9)
FINGERPRINT = Fingerprint.from_dict({})
GEOMETRY = Geometry(block_tokens=32, max_model_tokens=4096, layer_group=1, first_head=0, end_head=8)


class InstantNodes:
    """Whoever is at an address is who discovery says is there."""

    def __init__(self) -> None:
        self.at: dict[str, Member] = {}
        self.num_described = 0

    def follow(self, members: Sequence[Member]) -> None:
        self.at = {member.address: member for member in members}

    def client(self, address: str, router: RouterId) -> NodeClient:
        return cast(NodeClient, InstantNode(self, address))


class InstantNode:
    """Implements what a connection calls of `NodeClient`."""

    def __init__(self, nodes: InstantNodes, address: str) -> None:
        self.address = address
        self._nodes = nodes
        self._ref = NodeRef(NodeId(nodes.at[address].id), Incarnation(1))
        self._role = nodes.at[address].role
        self._peers: dict[NodeRef, PeerState] = {}

    async def describe(self, *, timeout_s: float) -> NodeDescription:
        self._nodes.num_described += 1
        return NodeDescription(
            ref=self._ref,
            role=self._role,
            is_ready=True,
            not_ready_reason="",
            model="fake",
            fingerprint=FINGERPRINT,
            geometry=GEOMETRY,
            transport="nixl",
            handoff_address=self.address,
            max_prompt_tokens=4000,
            version="0",
        )

    async def heartbeat(self, sequence: int, living: Living, *, lease_s: float, timeout_s: float) -> Beat:
        return Beat(NodeStatus(self._ref, is_ready=True, not_ready_reason="", peers=self._peers), frozenset())

    async def tell_peers(self, peers: Sequence[Peer], *, expires_s: float, timeout_s: float) -> None:
        self._peers = {peer.ref: PROVEN for peer in peers}

    async def tokens(self) -> AsyncGenerator[Mapping[RequestId, Sequence[StreamEvent]], None]:
        yield {}
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        pass
