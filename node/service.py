"""The gRPC edge of the Node service: wire types in, `NodeControl` calls, wire types out."""

from importlib.metadata import version
from typing import Generic, Protocol, TypeVar

import grpc.aio

from twostep.core.errors import Cancelled
from twostep.core.ids import Incarnation, RequestId, RouterId
from twostep.engine.step_record import StepRecord
from twostep.node.address import NodeAddress
from twostep.node.control import NodeControl
from twostep.node.description import LedgerEntry, NodeLedger, NodeStatus, Peer, PeerStage, PeerState
from twostep.node.leases import Heartbeat
from twostep.node.loading import Loading
from twostep.node.trace import NodeTrace, Span
from twostep.proto import node_pb2 as pb
from twostep.proto import node_pb2_grpc
from twostep.proto.rpc import Context
from twostep.proto.wire import (
    block_news_to_pb,
    geometry_to_pb,
    node_from_pb,
    node_to_pb,
    rate_point_to_pb,
    step_pace_to_pb,
)

VERSION = version("twostep")

STAGES = {
    PeerStage.UNKNOWN: pb.PeerState.UNKNOWN,
    PeerStage.HANDSHAKING: pb.PeerState.HANDSHAKING,
    PeerStage.PROVEN: pb.PeerState.PROVEN,
    PeerStage.FAILED: pb.PeerState.FAILED,
    PeerStage.SUSPENDED: pb.PeerState.SUSPENDED,
}


class Controlled(Protocol):
    """A node that answers the router's questions."""

    @property
    def control(self) -> NodeControl: ...


C = TypeVar("C", bound=Controlled)


def add_node_service(server: grpc.aio.Server, address: NodeAddress, node: Loading[C]) -> None:
    """Add what routers ask of every node."""
    node_pb2_grpc.add_NodeServicer_to_server(NodeService(address, node), server)  # type: ignore[no-untyped-call]


class NodeService(node_pb2_grpc.NodeServicer, Generic[C]):
    """Answers Describe from the first moment; everything else once the node is loaded."""

    def __init__(self, address: NodeAddress, node: Loading[C]) -> None:
        self._address = address
        self._node = node

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.NodeDescription:
        reply = pb.NodeDescription(
            node=node_to_pb(self._address.node),
            role=self._address.role,
            handoff_address=self._address.grpc,
            not_ready_reason=self._node.reason,
            version=VERSION,
        )
        if self._node.value is not None:
            _describe_loaded(self._node.value.control, reply)
        return reply

    async def Peers(self, request: pb.PeersRequest, context: Context) -> pb.PeersReply:
        peers = [Peer(node_from_pb(peer.node), peer.handoff_address) for peer in request.peers]
        states = self._node.get().control.learn_peers(peers, request.expires_s)
        return pb.PeersReply(peers=map(peer_state_to_pb, states))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        node = self._node.get().control
        live, held = frozenset(map(RequestId, request.live)), frozenset(map(RequestId, request.held))
        unknown = node.hear(Heartbeat(RouterId(request.router), request.sequence, request.lease_s, live, held))
        reply = pb.HeartbeatReply(unknown=unknown, status=status_to_pb(node.status()))
        if request.HasField("blocks"):
            news = node.block_news(Incarnation(request.blocks.incarnation), request.blocks.next)
            reply.blocks.CopyFrom(block_news_to_pb(news))
        return reply

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        reason = Cancelled(request.reason or "cancelled by the router")
        return pb.CancelReply(known=self._node.get().control.cancel(RequestId(request.request), reason))

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.NodeStatus:
        return status_to_pb(self._node.get().control.status())

    async def Cordon(self, request: pb.CordonRequest, context: Context) -> pb.NodeStatus:
        node = self._node.get().control
        node.cordon(request.reason)
        return status_to_pb(node.status())

    async def Ledger(self, request: pb.LedgerRequest, context: Context) -> pb.LedgerReply:
        return ledger_to_pb(self._node.get().control.ledger())

    async def Trace(self, request: pb.TraceRequest, context: Context) -> pb.TraceReply:
        within_s = request.within_s if request.HasField("within_s") else None
        return trace_to_pb(self._node.get().control.trace(within_s))


def _describe_loaded(node: NodeControl, reply: pb.NodeDescription) -> None:
    seen = node.describe()
    reply.ready, reply.not_ready_reason = not seen.not_ready_reason, seen.not_ready_reason
    reply.model, reply.transport = seen.fingerprint.model, seen.transport
    reply.fingerprint.update(seen.fingerprint.as_dict())
    reply.geometry.CopyFrom(geometry_to_pb(seen.geometry))
    reply.num_blocks, reply.max_prompt_tokens = seen.num_blocks, seen.max_prompt_tokens
    reply.kernels = seen.kernels


def peer_state_to_pb(state: PeerState) -> pb.PeerState:
    return pb.PeerState(
        node=node_to_pb(state.node),
        state=STAGES[state.stage],
        reason=state.reason,
        path=state.path,
        bytes_per_s=state.bytes_per_s,
    )


def status_to_pb(status: NodeStatus) -> pb.NodeStatus:
    return pb.NodeStatus(
        node=node_to_pb(status.node),
        ready=not status.not_ready_reason,
        not_ready_reason=status.not_ready_reason,
        step=status.step,
        num_running=status.num_running,
        num_waiting=status.num_waiting,
        queued_tokens=status.queued_tokens,
        free_blocks=status.free_blocks,
        cached_blocks=status.cached_blocks,
        referenced_blocks=status.referenced_blocks,
        total_blocks=status.total_blocks,
        peers=map(peer_state_to_pb, status.peers),
        waiting_tokens=status.waiting_tokens,
        block_hold_s=status.block_hold_s,
        prefill_rates=map(rate_point_to_pb, status.prefill_rates),
        step_pace=step_pace_to_pb(status.step_pace) if status.step_pace else None,
    )


def ledger_to_pb(ledger: NodeLedger) -> pb.LedgerReply:
    return pb.LedgerReply(
        node=node_to_pb(ledger.node),
        total_blocks=ledger.total_blocks,
        free_blocks=ledger.free_blocks,
        cached_blocks=ledger.cached_blocks,
        referenced_blocks=ledger.referenced_blocks,
        orphaned_blocks=ledger.orphaned_blocks,
        landing_bytes=ledger.landing_bytes,
        landing_free_bytes=ledger.landing_free_bytes,
        entries=map(_entry_to_pb, ledger.entries),
    )


def _entry_to_pb(entry: LedgerEntry) -> pb.LedgerEntry:
    return pb.LedgerEntry(
        owner=entry.owner,
        phase=entry.phase,
        age_s=entry.age_s,
        blocks=entry.blocks,
        landing_offset=entry.landing_offset,
        landing_bytes=entry.landing_bytes,
        generation=entry.generation,
        attempt=entry.attempt,
        source=entry.source,
        destination=entry.destination,
        cooldown_left_s=entry.cooldown_left_s,
        writes_in_flight=entry.writes_in_flight,
    )


def trace_to_pb(trace: NodeTrace) -> pb.TraceReply:
    return pb.TraceReply(
        node=node_to_pb(trace.node),
        steps=(_step_to_pb(step, trace.now) for step in trace.steps),
        spans=(_span_to_pb(span, trace.now) for span in trace.spans),
    )


def _step_to_pb(step: StepRecord, now: float) -> pb.TracedStep:
    return pb.TracedStep(
        number=step.number,
        age_s=now - step.started_at,
        duration_s=step.duration_s,
        gap_s=step.gap_s,
        requests=step.num_requests,
        decode_tokens=step.num_decode_tokens,
        prompt_tokens=step.num_prompt_tokens,
        hit_tokens=step.num_hit_tokens,
        preempted=step.num_preempted,
        token_budget=step.token_budget,
    )


def _span_to_pb(span: Span, now: float) -> pb.TracedSpan:
    return pb.TracedSpan(
        request=span.request,
        attempt=span.attempt,
        phase=span.phase,
        age_s=now - span.started_at,
        duration_s=span.duration_s,
    )
