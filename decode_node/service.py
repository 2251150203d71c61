"""The gRPC edges of a decode node: the router's Decode service, and what prefill nodes call."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from twostep.core.errors import InvalidRequest
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import Attempt, RouterId
from twostep.core.request import Timing
from twostep.decode_node.node import DecodeNode
from twostep.decode_node.orders import Granted, Queued, ReserveOrder, Source
from twostep.decode_node.tokens import Ended, TokenBatch
from twostep.node.handoff_messages import LegProgress
from twostep.node.handoff_wire import (
    OUTCOMES,
    answer_to_pb,
    done_from_pb,
    failed_from_pb,
    hello_from_pb,
    hello_reply_to_pb,
    landed_from_pb,
)
from twostep.node.loading import Loading
from twostep.proto import handoff_pb2, handoff_pb2_grpc, node_pb2_grpc
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import Context, require_finite, traceparent_of
from twostep.proto.wire import (
    decode_bill_to_pb,
    error_to_pb,
    geometry_from_pb,
    leg_from_pb,
    leg_to_pb,
    node_from_pb,
    request_from_pb,
    ticket_to_pb,
)


def add_services(server: grpc.aio.Server, node: Loading[DecodeNode]) -> None:
    """Add what routers and prefill nodes call."""
    node_pb2_grpc.add_DecodeServicer_to_server(DecodeService(node), server)  # type: ignore[no-untyped-call]
    handoff_pb2_grpc.add_HandoffDestinationServicer_to_server(DestinationService(node), server)  # type: ignore[no-untyped-call]


class DecodeService(node_pb2_grpc.DecodeServicer):
    """Router to decode node."""

    def __init__(self, node: Loading[DecodeNode]) -> None:
        self._node = node

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> AsyncIterator[pb.ReserveEvent]:
        async with aclosing(self._node.get().queue.reserve(_order_from_pb(request, traceparent_of(context)))) as events:
            async for event in events:
                yield _event_to_pb(event)

    async def Tokens(self, request: pb.TokensRequest, context: Context) -> AsyncIterator[pb.TokenBatch]:
        # The router takes its requests here only once it knows that the stream is open.
        await context.send_initial_metadata(())
        async with aclosing(self._node.get().parts.tokens.read(RouterId(request.router))) as batches:
            async for batch in batches:
                yield _batch_to_pb(batch)


class DestinationService(handoff_pb2_grpc.HandoffDestinationServicer):
    """Prefill node to decode node."""

    def __init__(self, node: Loading[DecodeNode]) -> None:
        self._node = node

    async def Hello(self, request: handoff_pb2.HelloRequest, context: Context) -> handoff_pb2.HelloReply:
        return hello_reply_to_pb(self._node.get().answer_hello(hello_from_pb(request)))

    async def Probe(self, request: handoff_pb2.ProbeRequest, context: Context) -> handoff_pb2.ProbeReply:
        source = node_from_pb(request.source)
        arrived = self._node.get().peers.prove(source, request.registration, request.probe_digest)
        return handoff_pb2.ProbeReply(arrived=arrived)

    async def Progress(self, request: handoff_pb2.ProgressRequest, context: Context) -> handoff_pb2.ProgressReply:
        legs = [LegProgress(leg_from_pb(one.leg), one.phase, one.queue_position, one.bytes_sent) for one in request.legs]
        unknown = self._node.get().legs.progress(node_from_pb(request.source), request.engine_step, legs)
        return handoff_pb2.ProgressReply(unknown=map(leg_to_pb, unknown))

    async def Landed(self, request: handoff_pb2.LandedRequest, context: Context) -> handoff_pb2.LandedReply:
        await self._node.get().legs.landed(landed_from_pb(request))
        return handoff_pb2.LandedReply()

    async def Done(self, requests: AsyncIterator[handoff_pb2.DoneRequest], context: Context) -> handoff_pb2.DoneReply:
        async for request in requests:
            require_finite(request)
            return answer_to_pb(await self._node.get().legs.done(done_from_pb(request)))
        raise InvalidRequest("the call ended without its message")

    async def Failed(self, request: handoff_pb2.FailedRequest, context: Context) -> handoff_pb2.FailedReply:
        answer = await self._node.get().legs.failed(failed_from_pb(request))
        return handoff_pb2.FailedReply(outcome=OUTCOMES[answer.outcome])


def _order_from_pb(wire: pb.ReserveRequest, traceparent: str) -> ReserveOrder:
    source = None
    if wire.HasField("prefill_node"):
        fingerprint = Fingerprint.from_dict(dict(wire.fingerprint))
        source = Source(node_from_pb(wire.prefill_node), fingerprint, geometry_from_pb(wire.geometry))
    request, timing = request_from_pb(wire.request), Timing(wire.age_s, wire.remaining_s)
    return ReserveOrder(RouterId(wire.router), request, Attempt(wire.attempt), source, timing, traceparent)


def _event_to_pb(event: Queued | Granted) -> pb.ReserveEvent:
    if isinstance(event, Queued):
        return pb.ReserveEvent(queued=pb.Queued(position=event.position, estimate_s=event.estimate_s))
    ticket = ticket_to_pb(event.ticket) if event.ticket else None
    return pb.ReserveEvent(granted=pb.Granted(ticket=ticket, cached_tokens=event.cached_tokens))


def _batch_to_pb(batch: TokenBatch) -> pb.TokenBatch:
    tokens = (
        pb.Token(request=one.request, attempt=one.attempt, choice=one.choice, index=one.index, token=one.token)
        for one in batch.tokens
    )
    return pb.TokenBatch(tokens=tokens, ended=map(_ended_to_pb, batch.ended))


def _ended_to_pb(ended: Ended) -> pb.Ended:
    return pb.Ended(
        request=ended.request,
        attempt=ended.attempt,
        finish_reason=ended.finish or "",
        error=error_to_pb(ended.error) if ended.error else None,
        bill=decode_bill_to_pb(ended.bill),
        num_tokens=ended.num_tokens,
    )
