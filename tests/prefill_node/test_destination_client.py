"""A Done's call is opened before it is said, by real gRPC: what that saves must cost nothing when it goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from twostep.core.errors import DeadlineExceeded, InvalidRequest, NodeUnavailable
from twostep.core.ids import Attempt, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.ticket import Leg
from twostep.node.calls import Channels
from twostep.node.handoff_messages import Answer, CellDigests, Done, Outcome
from twostep.prefill_node.destination_client import DestinationClient
from twostep.proto import handoff_pb2 as pb
from twostep.proto import handoff_pb2_grpc
from twostep.proto.rpc import new_server

pytestmark = pytest.mark.processes

LEG = Leg(RequestId("r"), Attempt(1), NodeRef(NodeId("prefill-0"), Incarnation(5)), NodeRef(NodeId("decode-0"), Incarnation(6)))
DONE = Done(LEG, Generation(4), 17, CellDigests(range(2), range(3), np.zeros((2, 3), np.uint64)), finished=False)
ATTACHED = pb.DoneReply(outcome=pb.ATTACHED)
LONG_S = 20.0

Handle = Callable[[Any], Awaitable[pb.DoneReply]]


class Destination(handoff_pb2_grpc.HandoffDestinationServicer):
    """Handles each call as the next of `handlers` says."""

    def __init__(self, *handlers: Handle) -> None:
        self.opened = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._handlers = list(handlers)

    async def Done(self, requests: Any, context: Any) -> pb.DoneReply:  # noqa: N802 - gRPC's name
        self.opened.set()
        try:
            return await self._handlers.pop(0)(requests)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def attach(requests: Any) -> pb.DoneReply:
    async for request in requests:
        assert (request.first_token, request.leg.request) == (17, "r")
        return ATTACHED
    raise InvalidRequest("no message came")


async def break_at_once(requests: Any) -> pb.DoneReply:
    raise NodeUnavailable("starting anew")


async def say_nothing(requests: Any) -> pb.DoneReply:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def client_of(destination: Destination, *, call_s: float = LONG_S) -> AsyncIterator[DestinationClient]:
    server, channels = new_server(), Channels()
    handoff_pb2_grpc.add_HandoffDestinationServicer_to_server(destination, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield DestinationClient(channels, lambda node: f"127.0.0.1:{port}", call_s=call_s)
    finally:
        await channels.close()
        await server.stop(None)


async def test_the_call_is_open_before_there_is_anything_to_say() -> None:
    destination = Destination(attach)
    async with client_of(destination) as client:
        with client.opened_for_done(LEG):
            await asyncio.wait_for(destination.opened.wait(), LONG_S)
            assert await client.done(DONE, give_up_s=LONG_S) == Answer(Outcome.ATTACHED)


async def test_a_done_that_nobody_opened_is_said_all_the_same() -> None:
    async with client_of(Destination(attach)) as client:
        assert await client.done(DONE, give_up_s=LONG_S) == Answer(Outcome.ATTACHED)


async def test_an_opened_call_that_has_broken_is_made_again() -> None:
    destination = Destination(break_at_once, attach)
    async with client_of(destination) as client:
        with client.opened_for_done(LEG):
            await asyncio.wait_for(destination.opened.wait(), LONG_S)
            assert await client.done(DONE, give_up_s=LONG_S) == Answer(Outcome.ATTACHED)


async def test_a_leg_that_ends_before_its_done_closes_the_call() -> None:
    destination = Destination(say_nothing)
    async with client_of(destination) as client:
        with client.opened_for_done(LEG):
            await asyncio.wait_for(destination.opened.wait(), LONG_S)
        await asyncio.wait_for(destination.cancelled.wait(), LONG_S)


async def test_a_done_without_an_answer_is_given_up_in_time() -> None:
    destination = Destination(say_nothing)
    async with client_of(destination, call_s=0.05) as client:
        with pytest.raises(DeadlineExceeded, match="not answered in time"):
            await client.done(DONE, give_up_s=0.0)
        await asyncio.wait_for(destination.cancelled.wait(), LONG_S)
