"""Errors cross a gRPC call as the class that was raised, whatever kind of call it is."""

# ruff: noqa: N802 - the protocol's names

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from twostep.core.errors import DeadlineExceeded, InvalidRequest, NodeUnavailable, NodeUnreachable, QueueFull
from twostep.node.calls import repeat_until_answered
from twostep.proto import node_pb2 as pb
from twostep.proto import node_pb2_grpc
from twostep.proto.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, new_server, open_channel, serving_errors

pytestmark = pytest.mark.processes

FULL = QueueFull("64 requests wait", param="messages", retry_after_s=1.5)


class Refusing(node_pb2_grpc.NodeServicer, node_pb2_grpc.DecodeServicer):
    async def Describe(self, request: pb.DescribeRequest, context: object) -> pb.NodeDescription:
        raise FULL

    async def Ledger(self, request: pb.LedgerRequest, context: object) -> pb.LedgerReply:
        raise NodeUnreachable("decode-1 is gone")

    async def Status(self, request: pb.StatusRequest, context: object) -> pb.NodeStatus:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def Reserve(self, request: pb.ReserveRequest, context: object) -> AsyncIterator[pb.ReserveEvent]:
        yield pb.ReserveEvent()
        raise FULL


@asynccontextmanager
async def refusing(address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = new_server()
    node_pb2_grpc.add_NodeServicer_to_server(Refusing(), server)
    node_pb2_grpc.add_DecodeServicer_to_server(Refusing(), server)
    address = f"127.0.0.1:{server.add_insecure_port(address)}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def same(error: QueueFull) -> bool:
    return (error.message, error.param, error.retry_after_s) == (FULL.message, FULL.param, FULL.retry_after_s)


async def test_a_refused_call_raises_what_the_other_side_raised() -> None:
    async with refusing() as address, open_channel(address) as channel:
        with pytest.raises(QueueFull) as caught, serving_errors("decode-0"):
            await node_pb2_grpc.NodeStub(channel).Describe(pb.DescribeRequest(), timeout=30)
    assert same(caught.value)


async def test_a_stream_that_fails_midway_raises_what_the_other_side_raised() -> None:
    async with refusing() as address, open_channel(address) as channel:
        events = node_pb2_grpc.DecodeStub(channel).Reserve(pb.ReserveRequest(), timeout=30)
        assert await anext(aiter(events)) == pb.ReserveEvent()
        with pytest.raises(QueueFull) as caught, serving_errors("decode-0"):
            await anext(aiter(events))
    assert same(caught.value)


async def test_whom_the_called_node_could_not_reach_was_not_the_called_node() -> None:
    async with refusing() as address, open_channel(address) as channel:
        with pytest.raises(NodeUnavailable, match=r"^decode-1 is gone$") as caught, serving_errors("prefill-0"):
            await node_pb2_grpc.NodeStub(channel).Ledger(pb.LedgerRequest(), timeout=30)
    assert not isinstance(caught.value, NodeUnreachable)


async def test_a_node_that_is_not_there_is_unavailable_by_its_name() -> None:
    async with open_channel("127.0.0.1:9") as channel:
        with pytest.raises(NodeUnreachable, match=r"^decode-0: UNAVAILABLE: "), serving_errors("decode-0"):
            await node_pb2_grpc.NodeStub(channel).Describe(pb.DescribeRequest(), timeout=30)


async def test_a_call_that_takes_too_long_has_its_own_error() -> None:
    async with refusing() as address, open_channel(address) as channel:
        with pytest.raises(DeadlineExceeded, match=r"^decode-0 did not answer in time$"), serving_errors("decode-0"):
            await node_pb2_grpc.NodeStub(channel).Status(pb.StatusRequest(), timeout=0.05)


def test_idle_connections_are_kept_alive_from_both_ends_and_no_server_takes_that_amiss() -> None:
    channel, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    for end in (channel, server):
        assert end["grpc.keepalive_permit_without_calls"] == 1
        assert end["grpc.http2.max_pings_without_data"] == 0
        # A stateful firewall forgets a silent connection after a minute at the earliest.
        assert end["grpc.keepalive_time_ms"] <= 30_000
    assert channel["grpc.keepalive_time_ms"] > 2 * server["grpc.http2.min_recv_ping_interval_without_data_ms"]


async def test_a_channel_reaches_a_node_that_was_started_anew_at_its_address() -> None:
    async with refusing() as address:
        channel = open_channel(address)

        async def call() -> None:
            with serving_errors("decode-0"):
                await node_pb2_grpc.NodeStub(channel).Describe(pb.DescribeRequest(), timeout=30)

        with pytest.raises(QueueFull):
            await call()
    with pytest.raises(NodeUnreachable):
        await call()
    async with refusing(address), channel:
        with pytest.raises(QueueFull):
            await repeat_until_answered(call, give_up_s=10)


async def test_a_new_node_at_a_lost_ones_address_is_called_at_once() -> None:
    async with refusing() as address:
        pass
    async with open_channel(address) as lost:
        with pytest.raises(NodeUnreachable), serving_errors("decode-0"):
            await node_pb2_grpc.NodeStub(lost).Describe(pb.DescribeRequest(), timeout=30)
        async with refusing(address), open_channel(address) as channel:
            with pytest.raises(QueueFull), serving_errors("decode-0"):
                await node_pb2_grpc.NodeStub(channel).Describe(pb.DescribeRequest(), timeout=30)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_number_that_is_none_goes_no_further_than_the_edge(number: float) -> None:
    sampling = pb.Sampling(temperature=number)
    async with refusing() as address, open_channel(address) as channel:
        with pytest.raises(InvalidRequest, match=f"lease_s: expected a finite number, found {number}"), serving_errors("d"):
            await node_pb2_grpc.NodeStub(channel).Heartbeat(pb.HeartbeatRequest(lease_s=number), timeout=30)
        request = pb.ReserveRequest(request=pb.GenerateRequest(sampling=sampling), fingerprint={"a": "b"})
        with pytest.raises(InvalidRequest, match="temperature: expected a finite number"), serving_errors("d"):
            await anext(aiter(node_pb2_grpc.DecodeStub(channel).Reserve(request, timeout=30)))
