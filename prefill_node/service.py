"""The gRPC edges of a prefill node: the router's Prefill service, and what decode nodes call."""

import grpc.aio

from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import RouterId
from twostep.node.handoff_wire import ABORT_STATES, abort_from_pb, credit_from_pb
from twostep.node.loading import Loading
from twostep.prefill_node.leg import PrefillOrder
from twostep.prefill_node.node import PrefillNode
from twostep.proto import handoff_pb2, handoff_pb2_grpc, node_pb2_grpc
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import Context, traceparent_of
from twostep.proto.wire import prefill_bill_to_pb, request_from_pb, ticket_from_pb


def add_services(server: grpc.aio.Server, node: Loading[PrefillNode]) -> None:
    """Add what routers and decode nodes call."""
    node_pb2_grpc.add_PrefillServicer_to_server(PrefillService(node), server)  # type: ignore[no-untyped-call]
    handoff_pb2_grpc.add_HandoffSourceServicer_to_server(SourceService(node), server)  # type: ignore[no-untyped-call]


class PrefillService(node_pb2_grpc.PrefillServicer):
    """Router to prefill node."""

    def __init__(self, node: Loading[PrefillNode]) -> None:
        self._node = node

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.PrefillReply:
        order = PrefillOrder(
            RouterId(request.router),
            request_from_pb(request.request),
            ticket_from_pb(request.ticket),
            Fingerprint.from_dict(dict(request.fingerprint)),
            request.age_s,
            traceparent_of(context),
        )
        prefilled = await self._node.get().prefill(order)
        return pb.PrefillReply(bill=prefill_bill_to_pb(prefilled.bill), first_token=prefilled.first_token)


class SourceService(handoff_pb2_grpc.HandoffSourceServicer):
    """Decode node to prefill node."""

    def __init__(self, node: Loading[PrefillNode]) -> None:
        self._node = node

    async def Credit(self, request: handoff_pb2.CreditRequest, context: Context) -> handoff_pb2.CreditReply:
        self._node.get().legs.credit(credit_from_pb(request))
        return handoff_pb2.CreditReply()

    async def Abort(self, request: handoff_pb2.AbortRequest, context: Context) -> handoff_pb2.AbortReply:
        state = await self._node.get().legs.abort(abort_from_pb(request))
        return handoff_pb2.AbortReply(state=ABORT_STATES[state])
