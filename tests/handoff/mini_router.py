"""A router of a few dozen lines: reserves, prefills, collects tokens. What the real one does, without text or choice."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.errors import ServingError
from twostep.core.ids import RequestId
from twostep.core.request import Request
from twostep.proto import node_pb2 as pb
from twostep.proto import node_pb2_grpc
from twostep.proto.rpc import serving_errors
from twostep.proto.wire import decode_bill_from_pb, error_from_pb, prefill_bill_from_pb, request_to_pb

NAME = "mini-router"
LONG_S = 60.0


@dataclass(slots=True)
class Answer:
    """All that D streamed about one request."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    error: ServingError | None = None
    bill: DecodeBill | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Served:
    tokens: tuple[int, ...]
    finish_reason: str
    granted: pb.Granted
    bill: DecodeBill
    prefill: PrefillBill | None


class Stubs:
    """One node's services."""

    def __init__(self, channel: Any) -> None:
        self.node: Any = node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]
        self.prefill: Any = node_pb2_grpc.PrefillStub(channel)  # type: ignore[no-untyped-call]
        self.decode: Any = node_pb2_grpc.DecodeStub(channel)  # type: ignore[no-untyped-call]


class MiniRouter:
    """Speaks to one prefill and one decode node. `batches` keeps every message of the token stream."""

    def __init__(self, prefill: Stubs, decode: Stubs, sides: tuple[pb.NodeDescription, pb.NodeDescription]) -> None:
        self.prefill_node, self.decode_node = prefill, decode
        self.p, self.d = sides
        self.answers: dict[tuple[str, int], Answer] = {}
        self.batches: list[pb.TokenBatch] = []
        self._forced: dict[str, int] = {}

    async def introduce(self) -> None:
        """Name each node to the other and wait until bytes have moved."""
        for side, stub in ((self.p, self.decode_node), (self.d, self.prefill_node)):
            await stub.node.Peers(self._peers(side))
        while not await self._is_proven():  # noqa: ASYNC110 - the node is asked over gRPC, as the real router does
            await asyncio.sleep(0.001)

    async def name_decode_node(self) -> None:
        """Tell P once more that D lives."""
        await self.prefill_node.node.Peers(self._peers(self.d))

    async def collect(self) -> None:
        """Read the token stream until it ends."""
        async for batch in self.decode_node.decode.Tokens(pb.TokensRequest(router=NAME)):
            self.batches.append(batch)
            for token in batch.tokens:
                answer = self.answer(token.request, token.attempt)
                assert token.index == len(answer.tokens) + self._forced[token.request]
                answer.tokens.append(token.token)
                answer.first.set()
            for ended in batch.ended:
                self._end(ended)

    def answer(self, request: str, attempt: int = 1) -> Answer:
        return self.answers.setdefault((request, attempt), Answer())

    def reserve(self, request: Request, *, attempt: int = 1, alone: bool = False, remaining_s: float = LONG_S) -> Any:
        """Open the reservation's stream."""
        self._forced[request.id] = len(request.output_tokens)
        wire = pb.ReserveRequest(router=NAME, request=request_to_pb(request), attempt=attempt, remaining_s=remaining_s)
        if not alone:
            wire.prefill_node.CopyFrom(self.p.node)
            wire.fingerprint.update(self.p.fingerprint)
            wire.geometry.CopyFrom(self.p.geometry)
        return self.decode_node.decode.Reserve(wire)

    async def grant(self, request: Request, **how: Any) -> pb.Granted:
        """Reserve and wait for the grant. Raises the ServingError of a refusal."""
        return await self.grant_from(self.reserve(request, **how))

    async def grant_from(self, reservation: Any) -> pb.Granted:
        """Read a reservation's stream up to its grant."""
        with serving_errors("decode"):
            while event := await reservation.read():
                if event.HasField("granted"):
                    granted: pb.Granted = event.granted
                    return granted
        raise AssertionError("the stream ended without a grant")

    async def prefill(self, request: Request, ticket: pb.Ticket) -> pb.PrefillReply:
        wire = pb.PrefillRequest(router=NAME, request=request_to_pb(request), ticket=ticket, fingerprint=self.d.fingerprint)
        with serving_errors("prefill"):
            reply: pb.PrefillReply = await self.prefill_node.prefill.Prefill(wire)
        return reply

    async def serve(self, request: Request, *, alone: bool = False) -> Served:
        """One request from reservation to last word. Raises the ServingError it ends with."""
        granted = await self.grant(request, alone=alone)
        reply = None if alone else await self.prefill(request, granted.ticket)
        answer = self.answer(request.id)
        await answer.over.wait()
        if answer.error:
            raise answer.error
        assert answer.bill is not None
        bill = prefill_bill_from_pb(reply.bill) if reply else None
        return Served(tuple(answer.tokens), answer.finish_reason, granted, answer.bill, bill)

    async def heartbeat(self, sequence: int, *live: RequestId, lease_s: float = 10.0) -> tuple[list[str], list[str]]:
        """Tell both nodes what lives; returns what each does not know."""
        wire = pb.HeartbeatRequest(router=NAME, sequence=sequence, lease_s=lease_s, live=live)
        replies = [await stub.node.Heartbeat(wire) for stub in (self.prefill_node, self.decode_node)]
        return list(replies[0].unknown), list(replies[1].unknown)

    async def status(self) -> tuple[pb.NodeStatus, pb.NodeStatus]:
        """Return the status of both nodes."""
        both = [await stub.node.Status(pb.StatusRequest()) for stub in (self.prefill_node, self.decode_node)]
        return both[0], both[1]

    async def cancel(self, request: RequestId) -> tuple[bool, bool]:
        """Cancel on both nodes; returns whether each knew the request."""
        wire = pb.CancelRequest(request=request, reason="the client has gone")
        known = [(await stub.node.Cancel(wire)).known for stub in (self.prefill_node, self.decode_node)]
        return known[0], known[1]

    def _end(self, ended: pb.Ended) -> None:
        answer = self.answer(ended.request, ended.attempt)
        assert not answer.over.is_set()
        answer.finish_reason = ended.finish_reason
        answer.error = error_from_pb(ended.error) if ended.HasField("error") else None
        answer.bill = decode_bill_from_pb(ended.bill)
        answer.over.set()

    async def _is_proven(self) -> bool:
        reply = await self.prefill_node.node.Peers(self._peers(self.d))
        (state,) = reply.peers
        assert state.state != pb.PeerState.FAILED, state.reason
        return bool(state.state == pb.PeerState.PROVEN)

    def _peers(self, side: pb.NodeDescription) -> pb.PeersRequest:
        peer = pb.Peer(node=side.node, handoff_address=side.handoff_address)
        return pb.PeersRequest(router=NAME, peers=[peer], expires_s=LONG_S)
