"""Whatever message a method of serving.proto is called with, the answer is a reply or an error of the client's."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostep.proto import serving_pb2 as pb
from twostep.tests.router.cluster import Cluster, cluster

pytestmark = pytest.mark.processes

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["Serving"].methods}
OK, INVALID, UNKNOWN = grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND

RIGHT_BY_NAME = {"model": "fake", "role": "user"}
RIGHT = {
    FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    FieldDescriptor.CPPTYPE_INT32: 7,
    FieldDescriptor.CPPTYPE_UINT32: 7,
    FieldDescriptor.CPPTYPE_UINT64: 7,
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_STRING: "a",
}
ODD: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([0, 1, 511, 512, (1 << 32) - 1]) | st.integers(0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.sampled_from(["", "\0", "é😀", "x" * 300, "\u202e", "tool"]) | st.text(max_size=20),
}


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, num_right: int) -> Message:
    """Messages of a kind with any of its fields, of which `num_right` values are right for each that is odd."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if draw(st.booleans()):
            value = draw(values(field, num_right))
            message.MergeFrom(type(message)(**{field.name: value}))
    return message


def values(field: FieldDescriptor, num_right: int) -> st.SearchStrategy[Any]:
    if field.message_type:
        one: st.SearchStrategy[Any] = messages(field.message_type, num_right)
    else:
        right = st.just(RIGHT_BY_NAME.get(field.name, RIGHT[field.cpp_type]))
        one = st.one_of(*[right] * num_right, ODD[field.cpp_type])
    return st.lists(one, max_size=5) if field.is_repeated else one


async def call(running: Cluster, method: str, request: Message) -> grpc.StatusCode:
    asked = METHODS[method]
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        open_call: Any = channel.unary_stream if asked.server_streaming else channel.unary_unary
        path = f"/{asked.containing_service.full_name}/{method}"
        calling = open_call(path, type(request).SerializeToString, GetMessageClass(asked.output_type).FromString)(
            request, timeout=60
        )
        with suppress(grpc.aio.AioRpcError):
            _ = [reply async for reply in calling] if asked.server_streaming else await calling
        status: grpc.StatusCode = await calling.code()
        return status


@pytest.mark.parametrize("num_examples", [300, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.timeout(900)
def test_no_message_however_odd_is_the_routers_fault(tmp_path: Path, method: str, num_examples: int) -> None:
    possible = {OK} if method == "Models" else {OK, INVALID, UNKNOWN}
    outcomes: set[grpc.StatusCode] = set()
    with asyncio.Runner() as runner:
        context = cluster(tmp_path)
        running = runner.run(context.__aenter__())

        @settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.integers(1, 20).flatmap(lambda num_right: messages(METHODS[method].input_type, num_right)))
        def run(request: Message) -> None:
            status = runner.run(call(running, method, request))
            assert status in possible
            outcomes.add(status)

        try:
            run()
            assert runner.run(running.metric("twostep_router_in_flight_requests")) == 0
        finally:
            runner.run(context.__aexit__(None, None, None))
    assert outcomes == possible
