"""The router's calls to one node: the gRPC edge, where wire types end."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from twostep.core.bill import PrefillBill
from twostep.core.block_news import BlockNews
from twostep.core.errors import NodeUnavailable, ServingError
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.core.pace import PrefillCurve
from twostep.core.request import FinishReason, Request, Timing
from twostep.core.ticket import Ticket
from twostep.proto import node_pb2 as pb
from twostep.proto.node_pb2_grpc import DecodeStub, NodeStub, PrefillStub
from twostep.proto.rpc import Channel, open_channel, serving_errors, trace_metadata
from twostep.proto.wire import (
    block_news_from_pb,
    decode_bill_from_pb,
    error_from_pb,
    fill_request,
    geometry_from_pb,
    geometry_to_pb,
    node_from_pb,
    node_to_pb,
    prefill_bill_from_pb,
    rate_point_from_pb,
    step_pace_from_pb,
    ticket_from_pb,
    ticket_to_pb,
)
from twostep.router.nodes.events import DecodeEnded, Reserved, ReserveQueued, StreamEvent, TokenArrived
from twostep.router.placement.node_view import NodeDescription, NodeStatus, Peer, PeerState

PEER_STATES = {
    pb.PeerState.HANDSHAKING: "handshaking",
    pb.PeerState.PROVEN: "proven",
    pb.PeerState.FAILED: "failed",
    pb.PeerState.SUSPENDED: "suspended",
}


@dataclass(frozen=True, slots=True)
class Beat:
    """A node's answer to a heartbeat: its status, which listed requests it does not know, and what its prefix cache holds.

    `news` is None where the node was not asked for it, or cannot tell.
    """

    status: NodeStatus
    unknown: frozenset[RequestId]
    news: BlockNews | None = None


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a node's prefix cache has been followed: the first event of this life of it that is still to be heard."""

    node: NodeRef
    next_event: int

    def to_pb(self) -> pb.BlockCursor:
        return pb.BlockCursor(incarnation=self.node.incarnation, next=self.next_event)


@dataclass(frozen=True, slots=True)
class Living:
    """This router's requests on a node; nobody takes the tokens of those that are `held`.

    `followed` tells how much of its prefix cache is known; None: nothing of it is asked for.
    """

    requests: frozenset[RequestId]
    held: frozenset[RequestId] = frozenset()
    followed: Followed | None = None


class NodeClient:
    """Every method raises ServingError: the node's own, or NodeUnavailable when it cannot be reached."""

    def __init__(self, address: str, router: RouterId, open_one: Callable[[str], Channel] = open_channel) -> None:
        self.address = address
        self._router = router
        self._channel = open_one(address)
        self._node: Any = NodeStub(self._channel)  # type: ignore[no-untyped-call]
        self._prefill: Any = PrefillStub(self._channel)  # type: ignore[no-untyped-call]
        self._decode: Any = DecodeStub(self._channel)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await self._channel.close(None)

    async def describe(self, *, timeout_s: float) -> NodeDescription:
        with _errors_of(self.address):
            return _description(await self._node.Describe(pb.DescribeRequest(), timeout=timeout_s))

    async def heartbeat(self, sequence: int, living: Living, *, lease_s: float, timeout_s: float) -> Beat:
        beat = pb.HeartbeatRequest(
            router=self._router,
            sequence=sequence,
            lease_s=lease_s,
            live=sorted(living.requests),
            held=sorted(living.held),
            blocks=living.followed.to_pb() if living.followed else None,
        )
        with _errors_of(self.address):
            reply = await self._node.Heartbeat(beat, timeout=timeout_s)
            news = block_news_from_pb(reply.blocks) if reply.HasField("blocks") else None
            return Beat(_status(reply.status), frozenset(RequestId(request) for request in reply.unknown), news)

    async def tell_peers(self, peers: Sequence[Peer], *, expires_s: float, timeout_s: float) -> None:
        told = [pb.Peer(node=node_to_pb(peer.ref), handoff_address=peer.handoff_address) for peer in peers]
        with _errors_of(self.address):
            await self._node.Peers(pb.PeersRequest(router=self._router, peers=told, expires_s=expires_s), timeout=timeout_s)

    async def cancel(self, request: RequestId, reason: str, *, timeout_s: float) -> bool:
        """Return whether the node knew the request."""
        with _errors_of(self.address):
            reply = await self._node.Cancel(pb.CancelRequest(request=request, reason=reason), timeout=timeout_s)
        return bool(reply.known)

    async def reserve(
        self, request: Request, attempt: int, prefill: NodeDescription | None, timing: Timing, traceparent: str = ""
    ) -> AsyncGenerator[ReserveQueued | Reserved, None]:
        """Yield the request's places in D's queue, then the reservation. Closing the iterator dequeues it."""
        wanted = pb.ReserveRequest(
            router=self._router,
            attempt=attempt,
            remaining_s=timing.remaining_s,
            age_s=timing.age_s,
            **_source(prefill),
        )
        fill_request(wanted.request, request)
        with _errors_of(self.address):
            call = self._decode.Reserve(wanted, timeout=timing.remaining_s, **trace_metadata(traceparent))
            try:
                async for event in call:
                    yield _reserve_event(attempt, event)
            finally:
                call.cancel()

    async def prefill(
        self, request: Request, ticket: Ticket, destination: NodeDescription, timing: Timing, traceparent: str = ""
    ) -> PrefillBill:
        """Return P's bill when its leg has ended well."""
        wanted = pb.PrefillRequest(
            router=self._router,
            ticket=ticket_to_pb(ticket),
            fingerprint=destination.told_fingerprint,
            age_s=timing.age_s,
        )
        fill_request(wanted.request, request)
        with _errors_of(self.address):
            reply = await self._prefill.Prefill(wanted, timeout=timing.remaining_s, **trace_metadata(traceparent))
        return prefill_bill_from_pb(reply.bill)

    async def tokens(self) -> AsyncGenerator[Mapping[RequestId, Sequence[StreamEvent]], None]:
        """Yield what happens to this router's requests on D, by request, for each message; first nothing, once it is open."""
        with _errors_of(self.address):
            call = self._decode.Tokens(pb.TokensRequest(router=self._router))
            try:
                await call.wait_for_connection()
                yield {}
                async for batch in call:
                    yield _stream_events(batch)
            finally:
                call.cancel()


@contextmanager
def _errors_of(peer: str) -> Iterator[None]:
    """Turn whatever a call to `peer` fails with into a ServingError, also an answer that makes no sense."""
    try:
        with serving_errors(peer):
            yield
    except (ValueError, LookupError) as cause:
        raise NodeUnavailable(f"{peer} has sent something that this router cannot read: {cause}") from cause


def _source(prefill: NodeDescription | None) -> dict[str, Any]:
    if prefill is None:
        return {}
    return {
        "prefill_node": node_to_pb(prefill.ref),
        "fingerprint": prefill.told_fingerprint,
        "geometry": geometry_to_pb(prefill.geometry),
    }


def _description(wire: pb.NodeDescription) -> NodeDescription:
    return NodeDescription(
        ref=node_from_pb(wire.node),
        role=wire.role,
        is_ready=wire.ready,
        not_ready_reason=wire.not_ready_reason,
        model=wire.model,
        fingerprint=Fingerprint.from_dict(dict(wire.fingerprint)),
        geometry=geometry_from_pb(wire.geometry),
        transport=wire.transport,
        handoff_address=wire.handoff_address,
        max_prompt_tokens=wire.max_prompt_tokens,
        version=wire.version,
        kernels=wire.kernels,
    )


def _status(wire: pb.NodeStatus) -> NodeStatus:
    return NodeStatus(
        ref=node_from_pb(wire.node),
        is_ready=wire.ready,
        not_ready_reason=wire.not_ready_reason,
        step=wire.step,
        num_running=wire.num_running,
        num_waiting=wire.num_waiting,
        queued_tokens=wire.queued_tokens,
        free_blocks=wire.free_blocks,
        cached_blocks=wire.cached_blocks,
        total_blocks=wire.total_blocks,
        peers={node_from_pb(peer.node): _peer_state(peer) for peer in wire.peers},
        waiting_tokens=wire.waiting_tokens,
        block_hold_s=wire.block_hold_s,
        prefill_curve=PrefillCurve([rate_point_from_pb(point) for point in wire.prefill_rates]) if wire.prefill_rates else None,
        step_pace=step_pace_from_pb(wire.step_pace) if wire.HasField("step_pace") else None,
    )


def _peer_state(wire: pb.PeerState) -> PeerState:
    return PeerState(
        is_proven=wire.state == pb.PeerState.PROVEN,
        state=PEER_STATES.get(wire.state, "unknown"),
        reason=wire.reason,
        path=wire.path,
        bytes_per_s=wire.bytes_per_s,
    )


def _reserve_event(attempt: int, wire: pb.ReserveEvent) -> ReserveQueued | Reserved:
    if wire.HasField("queued"):
        queued = wire.queued
        return ReserveQueued(attempt, queued.position, queued.estimate_s if queued.HasField("estimate_s") else None)
    granted = wire.granted
    return Reserved(attempt, ticket_from_pb(granted.ticket) if granted.HasField("ticket") else None, granted.cached_tokens)


def _stream_events(batch: pb.TokenBatch) -> Mapping[RequestId, Sequence[StreamEvent]]:
    events: dict[RequestId, list[StreamEvent]] = {}
    for token in batch.tokens:
        request = RequestId(token.request)
        events.setdefault(request, []).append(TokenArrived(request, token.attempt, token.index, token.token))
    for ended in batch.ended:
        events.setdefault(RequestId(ended.request), []).append(_ended(ended))
    return events


def _ended(wire: pb.Ended) -> DecodeEnded:
    finish = FinishReason(wire.finish_reason) if wire.finish_reason in set(FinishReason) else None
    error = error_from_pb(wire.error) if wire.HasField("error") else None
    if finish is None and error is None:
        error = ServingError(f"the decode node ended the request without a reason it should know: {wire.finish_reason!r}")
    return DecodeEnded(
        request=RequestId(wire.request),
        attempt=wire.attempt,
        finish=finish,
        error=error,
        bill=decode_bill_from_pb(wire.bill) if wire.HasField("bill") else None,
        num_tokens=wire.num_tokens if wire.HasField("num_tokens") else None,
    )
