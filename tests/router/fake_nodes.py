"""Scripted prefill and decode nodes over real gRPC: they compute nothing, record what is asked, say what they are told."""

# ruff: noqa: N802 - the protocol's names and signatures

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.errors import ServingError
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.proto import node_pb2 as pb
from twostep.proto import node_pb2_grpc
from twostep.proto.rpc import new_server, traceparent_of
from twostep.proto.wire import (
    decode_bill_to_pb,
    error_to_pb,
    geometry_to_pb,
    node_to_pb,
    prefill_bill_to_pb,
)

FINGERPRINT = Fingerprint(
    model="fake",
    weights="w",
    tokenizer="t",
    layout="l",
    dtype="float32",
    num_layers=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=1000,
    rope="none",
    sampler="s",
)
GEOMETRY = Geometry(block_tokens=32, max_model_tokens=512, layer_group=1, first_head=0, end_head=1)
PREFILL_BILL = PrefillBill(
    queue_s=0.001, compute_s=0.002, transfer_s=0.003, exposed_s=0.001, cached_tokens=0, computed_tokens=10, bytes_sent=640
)
DECODE_BILL = DecodeBill(
    queue_s=0.0005,
    attach_s=0.0005,
    first_step_s=0.001,
    decode_s=0.01,
    num_steps=3,
    cached_tokens=0,
    computed_prompt_tokens=0,
    bytes_landed=640,
)


@dataclass(slots=True)
class Recorded:
    """What a node has been asked, in order."""

    beats: list[pb.HeartbeatRequest] = field(default_factory=list)
    peers: list[pb.PeersRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    reserves: list[pb.ReserveRequest] = field(default_factory=list)
    prefills: list[pb.PrefillRequest] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)


class Flag:
    """Lets a test wait until something has happened at least `count` times."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Condition()

    async def raise_(self) -> None:
        async with self._changed:
            self._count += 1
            self._changed.notify_all()

    async def wait(self, count: int = 1) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self._count >= count)


class FakeNode(node_pb2_grpc.NodeServicer):
    """The Node service. `proven` are the peers that the node says it has exchanged bytes with."""

    def __init__(self, role: str, name: str, incarnation: int = 1) -> None:
        self.ref = NodeRef(NodeId(name), Incarnation(incarnation))
        self.role = role
        self.is_ready = True
        self.proven: set[NodeRef] = set()
        self.suspended: dict[NodeRef, str] = {}
        """Peers that the node sends nothing to any more, and why."""
        self.unknown: set[str] = set()
        self.seen = Recorded()
        self.beaten, self.cancel_seen = Flag(), Flag()
        self.max_prompt_tokens = 400
        self.address = ""
        self._server: Any = None
        self._is_frozen = False
        self.geometry = GEOMETRY
        self.num_foreign = 0
        """Requests of other routers, each of one token."""

    async def start(self, port: int = 0) -> None:
        self._server = new_server()
        node_pb2_grpc.add_NodeServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.add_to(self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def freeze(self) -> None:
        """Answer no more heartbeats, as a stopped process: its connections stay open."""
        self._is_frozen = True

    def add_to(self, server: Any) -> None:
        raise NotImplementedError

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.NodeDescription:
        return pb.NodeDescription(
            node=node_to_pb(self.ref),
            role=self.role,
            ready=self.is_ready,
            not_ready_reason="" if self.is_ready else "loading",
            model="fake",
            fingerprint=FINGERPRINT.as_dict(),
            geometry=geometry_to_pb(self.geometry),
            transport="local",
            handoff_address=self.address,
            max_prompt_tokens=self.max_prompt_tokens,
            kernels="fake",
        )

    async def Peers(self, request: pb.PeersRequest, context: Any) -> pb.PeersReply:
        self.seen.peers.append(request)
        return pb.PeersReply()

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:
        self.seen.beats.append(request)
        await self.beaten.raise_()
        if self._is_frozen:
            await asyncio.get_running_loop().create_future()
        unknown = sorted(set(request.live) & self.unknown)
        return pb.HeartbeatReply(unknown=unknown, status=self._status(len(request.live) + self.num_foreign))

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelReply:
        self.seen.cancelled.append(request.request)
        await self.cancel_seen.raise_()
        return pb.CancelReply(known=True)

    def _status(self, num_living: int) -> pb.NodeStatus:
        proven = self.proven - self.suspended.keys()
        peers = [pb.PeerState(node=node_to_pb(ref), state=pb.PeerState.PROVEN, path="fake") for ref in proven]
        peers += [
            pb.PeerState(node=node_to_pb(ref), state=pb.PeerState.SUSPENDED, reason=why) for ref, why in self.suspended.items()
        ]
        reason = "" if self.is_ready else "loading"
        return pb.NodeStatus(
            node=node_to_pb(self.ref),
            ready=self.is_ready,
            not_ready_reason=reason,
            num_running=num_living,
            queued_tokens=num_living,
            peers=peers,
        )


ReserveScript = Callable[[pb.ReserveRequest], AsyncIterator[pb.ReserveEvent]]
PrefillScript = Callable[[pb.PrefillRequest], Any]


class FakeDecode(FakeNode, node_pb2_grpc.DecodeServicer):
    """Grants every reservation at once unless `on_reserve` says otherwise; emits only what it is told."""

    def __init__(self, name: str = "d", incarnation: int = 1) -> None:
        super().__init__("decode", name, incarnation)
        self.cached_tokens = 0
        self.on_reserve: ReserveScript = self.grant
        self.streaming = Flag()
        self._batches: defaultdict[str, asyncio.Queue[pb.TokenBatch | None]] = defaultdict(asyncio.Queue)
        """By router, as `_routers` are by request."""
        self._routers: dict[str, str] = {}

    def add_to(self, server: Any) -> None:
        node_pb2_grpc.add_DecodeServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Reserve(self, request: pb.ReserveRequest, context: Any) -> AsyncIterator[pb.ReserveEvent]:
        self.seen.reserves.append(request)
        self.seen.traces.append(traceparent_of(context))
        self._routers[request.request.id] = request.router
        async for event in self.on_reserve(request):
            yield event

    async def grant(self, request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
        if not request.HasField("prefill_node"):
            yield pb.ReserveEvent(granted=pb.Granted(cached_tokens=self.cached_tokens))
            self.answer(request.request, request.attempt)
            return
        leg = pb.Leg(
            request=request.request.id,
            attempt=request.attempt,
            source=request.prefill_node,
            destination=node_to_pb(self.ref),
        )
        yield pb.ReserveEvent(granted=pb.Granted(ticket=pb.Ticket(leg=leg), cached_tokens=self.cached_tokens))

    def answer(self, request: pb.GenerateRequest, attempt: int) -> None:
        """Said when a prefill is done: the whole answer. Replaced by tests."""

    async def Tokens(self, request: pb.TokensRequest, context: Any) -> AsyncIterator[pb.TokenBatch]:
        await context.send_initial_metadata(())
        await self.streaming.raise_()
        batches = self._batches[request.router]
        while (batch := await batches.get()) is not None:
            yield batch

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelReply:
        for reserve in self.seen.reserves[-1:]:
            self.finish(request.request, reserve.attempt, "cancelled")
        return await super().Cancel(request, context)

    def break_stream(self) -> None:
        for batches in self._batches.values():
            batches.put_nowait(None)

    def emit(self, request: str, attempt: int, tokens: Sequence[int], *, first: int = 0) -> None:
        """Send tokens in one message, numbered from `first`."""
        wire = [
            pb.Token(request=request, attempt=attempt, index=first + place, token=token) for place, token in enumerate(tokens)
        ]
        self.send(pb.TokenBatch(tokens=wire))

    def send(self, batch: pb.TokenBatch) -> None:
        """Send each router what is about its requests; what is about a request that nobody has made, to all of them."""
        for router, batches in self._batches.items():
            part = batch if len(self._batches) == 1 else self._part(batch, router)
            if part.tokens or part.ended:
                batches.put_nowait(part)

    def _part(self, batch: pb.TokenBatch, router: str) -> pb.TokenBatch:
        tokens, ended = (
            [one for one in some if self._routers.get(one.request, router) == router] for some in (batch.tokens, batch.ended)
        )
        return pb.TokenBatch(tokens=tokens, ended=ended)

    def finish(self, request: str, attempt: int, reason: str = "length", *, num_tokens: int | None = None) -> None:
        ended = pb.Ended(
            request=request, attempt=attempt, finish_reason=reason, bill=decode_bill_to_pb(DECODE_BILL), num_tokens=num_tokens
        )
        self.send(pb.TokenBatch(ended=[ended]))

    def fail(self, request: str, attempt: int, error: ServingError) -> None:
        self.send(pb.TokenBatch(ended=[pb.Ended(request=request, attempt=attempt, error=error_to_pb(error))]))


class FakePrefill(FakeNode, node_pb2_grpc.PrefillServicer):
    """Says that the prefill is done and lets the decode node answer, unless `on_prefill` says otherwise."""

    def __init__(self, name: str, decode: Sequence[FakeDecode], incarnation: int = 1) -> None:
        super().__init__("prefill", name, incarnation)
        self._decode = {node.ref.id: node for node in decode}
        self.proven = {node.ref for node in decode}
        self.bill = PREFILL_BILL
        self.on_prefill: PrefillScript = self.compute
        self.prefilling = Flag()

    def know(self, decode: FakeDecode) -> None:
        """Have exchanged bytes with `decode`, in place of any earlier node of its name."""
        self.proven = {ref for ref in self.proven if ref.id != decode.ref.id} | {decode.ref}
        self._decode[decode.ref.id] = decode

    def add_to(self, server: Any) -> None:
        node_pb2_grpc.add_PrefillServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Prefill(self, request: pb.PrefillRequest, context: Any) -> pb.PrefillReply:
        self.seen.prefills.append(request)
        self.seen.traces.append(traceparent_of(context))
        await self.prefilling.raise_()
        return await self.on_prefill(request)

    async def compute(self, request: pb.PrefillRequest) -> pb.PrefillReply:
        leg = request.ticket.leg
        self._decode[NodeId(leg.destination.id)].answer(request.request, leg.attempt)
        return pb.PrefillReply(bill=prefill_bill_to_pb(self.bill))
