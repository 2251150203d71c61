"""The gRPC edge towards decode nodes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from twostep.core.errors import DeadlineExceeded, StaleLeg
from twostep.core.ids import NodeRef
from twostep.core.ticket import Leg
from twostep.node.calls import Channels, repeat_until_answered
from twostep.node.handoff_messages import Answer, Done, Failed, Hello, HelloReply, Landed, LegProgress, Outcome
from twostep.node.handoff_wire import (
    answer_from_pb,
    done_to_pb,
    failed_to_pb,
    hello_reply_from_pb,
    hello_to_pb,
    landed_to_pb,
    outcome_from_pb,
)
from twostep.proto import handoff_pb2 as pb
from twostep.proto import handoff_pb2_grpc
from twostep.proto.rpc import serving_errors
from twostep.proto.wire import leg_from_pb, leg_to_pb, node_to_pb


class HandshakeClient:
    """Implements `HandshakeCalls` over gRPC."""

    def __init__(self, channels: Channels, *, call_s: float) -> None:
        self._channels = channels
        self._call_s = call_s

    async def hello(self, address: str, hello: Hello) -> HelloReply:
        with serving_errors(address):
            reply = await _stub(self._channels, address).Hello(hello_to_pb(hello), timeout=self._call_s)
        return hello_reply_from_pb(reply)

    async def probe(self, address: str, source: NodeRef, registration: int, digest: bytes) -> bool:
        request = pb.ProbeRequest(source=node_to_pb(source), registration=registration, probe_digest=digest)
        with serving_errors(address):
            reply = await _stub(self._channels, address).Probe(request, timeout=self._call_s)
        return bool(reply.arrived)


class DestinationClient:
    """Implements `DestinationCalls` over gRPC. `address_of` knows where each decode node listens."""

    def __init__(self, channels: Channels, address_of: Callable[[NodeRef], str | None], *, call_s: float) -> None:
        self._channels = channels
        self._address_of = address_of
        self._call_s = call_s
        self._opened: dict[Leg, Any] = {}

    async def progress(self, node: NodeRef, source: NodeRef, engine_step: int, legs: Sequence[LegProgress]) -> tuple[Leg, ...]:
        told = [
            pb.LegProgress(
                leg=leg_to_pb(one.leg), phase=one.phase, queue_position=one.queue_position, bytes_sent=one.bytes_sent
            )
            for one in legs
        ]
        request = pb.ProgressRequest(source=node_to_pb(source), engine_step=engine_step, legs=told)
        with serving_errors(str(node)):
            reply = await self._stub_of(node).Progress(request, timeout=self._call_s)
        return tuple(map(leg_from_pb, reply.unknown))

    async def landed(self, landed: Landed, *, give_up_s: float) -> None:
        request = landed_to_pb(landed)

        async def call() -> None:
            with serving_errors(str(landed.leg.destination)):
                await self._stub_of(landed.leg.destination).Landed(request, timeout=self._call_s)

        await repeat_until_answered(call, give_up_s=give_up_s)

    @contextmanager
    def opened_for_done(self, leg: Leg) -> Iterator[None]:
        self._opened[leg] = self._stub_of(leg.destination).Done()
        try:
            yield
        finally:
            if unused := self._opened.pop(leg, None):
                unused.cancel()

    async def done(self, done: Done, *, give_up_s: float) -> Answer:
        request = done_to_pb(done)

        async def call() -> Answer:
            opened = self._opened.pop(done.leg, None) or self._stub_of(done.leg.destination).Done()
            with serving_errors(str(done.leg.destination)):
                return answer_from_pb(await self._send(request, opened))

        return await repeat_until_answered(call, give_up_s=give_up_s)

    async def _send(self, request: pb.DoneRequest, opened: Any) -> pb.DoneReply:
        """Send the only message of an opened call and return its answer."""
        try:
            async with asyncio.timeout(self._call_s):
                # A call that has broken meanwhile takes no message; awaiting it tells why.
                with suppress(asyncio.InvalidStateError):
                    await opened.write(request)
                    await opened.done_writing()
                reply: pb.DoneReply = await opened
                return reply
        except TimeoutError as cause:
            raise DeadlineExceeded("a Done was not answered in time") from cause
        finally:
            opened.cancel()

    async def failed(self, failed: Failed, *, give_up_s: float) -> Outcome:
        request = failed_to_pb(failed)

        async def call() -> Outcome:
            with serving_errors(str(failed.leg.destination)):
                reply = await self._stub_of(failed.leg.destination).Failed(request, timeout=self._call_s)
            return outcome_from_pb(reply.outcome)

        return await repeat_until_answered(call, give_up_s=give_up_s)

    def _stub_of(self, node: NodeRef) -> Any:
        address = self._address_of(node)
        if address is None:
            raise StaleLeg(f"nobody knows where {node} is")
        return _stub(self._channels, address)


def _stub(channels: Channels, address: str) -> Any:
    return handoff_pb2_grpc.HandoffDestinationStub(channels.to(address))  # type: ignore[no-untyped-call]
