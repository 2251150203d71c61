"""A peer of another version, as it looks on the wire: a proxy through which only what that version knows gets, or more."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, MethodDescriptor

RELEASED = Path(__file__).parent / "released"
ADDITION = b"\xfa\xff\x7f\x05later"
"""A field that nobody has: number 262143, five bytes."""

Rewrite = Callable[[Descriptor, bytes], bytes]
"""Takes a message's type, as the last release knows it, and its bytes."""


def last_release() -> descriptor_pool.DescriptorPool:
    """Return what the last release says on the wire."""
    newest = max(RELEASED.glob("*.binpb"), key=lambda path: tuple(map(int, path.stem.split("."))))
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(newest.read_bytes()).file:
        pool.Add(file)
    return pool


def as_released(kind: Descriptor, message: bytes) -> bytes:
    """Leave out what the last release does not know, as it would not have said it, or not have understood it."""
    known = message_factory.GetMessageClass(kind).FromString(message)
    known.DiscardUnknownFields()
    return bytes(known.SerializeToString())


def with_additions(_: Descriptor, message: bytes) -> bytes:
    """Say something that only a later release understands."""
    return message + ADDITION


@asynccontextmanager
async def peer_of_another_version(address: str, rewrite: Rewrite) -> AsyncIterator[str]:
    """Yield an address at which the program at `address` seems to be of another version."""
    async with grpc.aio.insecure_channel(address) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Proxy(channel, rewrite),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


class _Proxy(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel, rewrite: Rewrite) -> None:
        self._channel = channel
        self._rewrite = rewrite
        self._pool = last_release()

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        service, _, name = path.removeprefix("/").partition("/")
        try:
            method: MethodDescriptor = self._pool.FindMethodByName(f"{service}.{name}")
        except KeyError:
            # The last release answers the same to what it does not know.
            return None
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, method))
        return grpc.unary_unary_rpc_method_handler(self._single(path, method))

    def _single(self, path: str, method: MethodDescriptor) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            call: Any = self._channel.unary_unary(path)
            try:
                reply = await call(self._rewrite(method.input_type, request), timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), tuple(error.trailing_metadata() or ()))
            return self._rewrite(method.output_type, reply)

        return answer

    def _stream(self, path: str, method: MethodDescriptor) -> Any:
        async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
            call: Any = self._channel.unary_stream(path)
            replies = call(self._rewrite(method.input_type, request), timeout=context.time_remaining())
            try:
                await replies.wait_for_connection()
                await context.send_initial_metadata(())
                async for reply in replies:
                    yield self._rewrite(method.output_type, reply)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), tuple(error.trailing_metadata() or ()))
            finally:
                replies.cancel()

        return answer
