"""gRPC as all programs use it: channel and server options, and errors to statuses and back."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from inspect import isasyncgenfunction
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from twostep.core.errors import DeadlineExceeded, InvalidRequest, NodeUnavailable, NodeUnreachable, ServingError
from twostep.core.spans import TRACE_KEY
from twostep.proto import node_pb2 as pb
from twostep.proto.wire import error_from_pb, error_to_pb

Channel = grpc.aio.Channel
Context = Any
"""A grpc.aio.ServicerContext: the published stubs make it generic, the class at run time is not."""
ERROR_KEY = "twostep-error-bin"
MAX_MESSAGE_BYTES = 64 << 20
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
SIZES = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]
CHANNEL_OPTIONS = [
    *KEEPALIVE,
    *SIZES,
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A new node at a lost one's address is called at once: it must not inherit an old channel's wait.
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS = [
    *KEEPALIVE,
    *SIZES,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `address` (host:port) that keeps itself alive and reconnects within a second."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def trace_metadata(traceparent: str) -> dict[str, Any]:
    """Return how a call tells its trace; nothing where it has none."""
    return {"metadata": ((TRACE_KEY, traceparent),)} if traceparent else {}


def traceparent_of(context: Context) -> str:
    """Return the trace that a call belongs to, empty when it was told none."""
    told = context.invocation_metadata() or ()
    return next((value for key, value in told if key == TRACE_KEY), "")


def admit_all(_: Context) -> None:
    """Let everybody call."""


def new_server(
    *, max_receive_bytes: int = MAX_MESSAGE_BYTES, admit: Callable[[Context], None] = admit_all, reuse_port: bool = False
) -> grpc.aio.Server:
    """Return a server that turns every ServingError of a handler into its status (see `ErrorInterceptor`).

    `admit` raises one for callers that must not call, whatever the method. With `reuse_port` other processes may serve at the
    same port.
    """
    options = {
        **dict(SERVER_OPTIONS),
        "grpc.max_receive_message_length": max_receive_bytes,
        "grpc.so_reuseport": int(reuse_port),
    }
    return grpc.aio.server(options=list(options.items()), interceptors=[ErrorInterceptor(admit)])


async def abort_with(context: Context, error: ServingError) -> NoReturn:
    """End the call with the error's status; the whole error travels in the trailing metadata."""
    trailing = ((ERROR_KEY, error_to_pb(error).SerializeToString()),)
    await context.abort(grpc.StatusCode[error.grpc_status], error.message, trailing)
    raise AssertionError("abort does not return")


@contextmanager
def serving_errors(peer: str) -> Iterator[None]:
    """Turn a failed call to `peer` into the ServingError that the peer raised, or into NodeUnreachable.

    Raises ServingError; a local deadline becomes DeadlineExceeded.
    """
    try:
        yield
    except grpc.aio.AioRpcError as cause:
        raise error_from_status(cause, peer) from cause


def error_from_status(status: grpc.aio.AioRpcError, peer: str) -> ServingError:
    trailing: Any = status.trailing_metadata() or ()
    for key, value in trailing:
        if key == ERROR_KEY:
            return _as_told_by_peer(error_from_pb(pb.Error.FromString(value)))
    if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{peer} did not answer in time")
    return NodeUnreachable(f"{peer}: {status.code().name}: {status.details()}")


def _as_told_by_peer(error: ServingError) -> ServingError:
    """Whoever the peer could not reach, it was not the peer."""
    return NodeUnavailable(error.message) if isinstance(error, NodeUnreachable) else error


def require_finite(message: Message) -> None:
    """Raise InvalidRequest where a number in `message`, at any depth, is NaN or infinite: a time made of it never comes."""
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and not math.isfinite(value):
            raise InvalidRequest(f"{field.name}: expected a finite number, found {value}", param=field.name)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for part in value if isinstance(value, Sequence) else [value]:
                # A map of texts is a field like this, too.
                if isinstance(part, Message):
                    require_finite(part)


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps every handler so that a ServingError, of `admit` or its own, ends the call with its status.

    No handler gets to see a request with numbers that are none; a stream of them asks `require_finite` itself.
    """

    def __init__(self, admit: Callable[[Context], None]) -> None:
        self._admit = admit

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.request_streaming and handler.response_streaming:
            # None of our own methods is such a stream. Where not everybody may call, there is none at all.
            return handler if self._admit is admit_all else None
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                _guard_unary(handler.stream_unary, self._admit), handler.request_deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            # A handler either yields its messages or, being a plain coroutine, writes them to its context.
            guard = _guard_stream if isasyncgenfunction(handler.unary_stream) else _guard_unary
            return grpc.unary_stream_rpc_method_handler(
                guard(handler.unary_stream, self._admit), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard_unary(handler.unary_unary, self._admit), handler.request_deserializer, handler.response_serializer
        )


def _guard_unary(behavior: Callable[..., Awaitable[Any]], admit: Callable[[Context], None]) -> Any:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            admit(context)
            if isinstance(request, Message):
                require_finite(request)
            return await behavior(request, context)
        except ServingError as error:
            await abort_with(context, error)

    return guarded


def _guard_stream(behavior: Callable[..., AsyncGenerator[Any, None]], admit: Callable[[Context], None]) -> Any:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            admit(context)
            require_finite(request)
            async with aclosing(behavior(request, context)) as messages:
                async for message in messages:
                    yield message
        except ServingError as error:
            await abort_with(context, error)

    return guarded
