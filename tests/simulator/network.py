"""gRPC without sockets: channels and servers under the generated stubs and the real services.

A call's messages keep their order, as on one stream of one connection; different calls overtake each other. What a real
client sees of a fault is what it sees here: UNAVAILABLE, DEADLINE_EXCEEDED, or nothing at all until its own deadline.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from twostep.proto.rpc import ErrorInterceptor, admit_all
from twostep.tests.simulator.faults import Fate, FaultPlan, MessageFault
from twostep.tests.simulator.process import Process
from twostep.tests.simulator.world import World

KEEPALIVE_S = 3.0
"""After so long without a sign of life both ends give a connection up."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
NEVER_DOUBLED = frozenset({"Tokens"})
"""A second reader takes the first one's place: not the same call twice, but another one."""

Watch = Callable[["Call", str, Any], None]
"""Is shown each request and each answer that really crosses: (call, "request" or "answer", message)."""


@dataclass(frozen=True, slots=True)
class Status:
    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, bytes], ...] = ()


OK = Status(grpc.StatusCode.OK)


class Network:
    """Which processes listen where, who hears whom, and what becomes of each message."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan: FaultPlan | None = None
        self.watch: Watch = lambda call, kind, message: None
        self.num_open = 0
        self._chance = world.chance("network")
        self._servers: dict[str, SimServer] = {}
        self._calls: dict[Call, None] = {}
        self._healed_at: dict[frozenset[str], float] = {}

    def listen(self, address: str, server: "SimServer") -> None:
        self._servers[address] = server

    def server_at(self, address: str) -> "SimServer | None":
        server = self._servers.get(address)
        return server if server and not server.process.is_dead and server.is_open else None

    def channel(self, client: Process, address: str) -> "SimChannel":
        return SimChannel(self, client, address)

    def meet(self, method: str, caller: str, called: str) -> MessageFault | None:
        return self.plan.meet(method, caller, called) if self.plan else None

    def latency(self) -> float:
        drawn = self._chance.random()
        if drawn < 0.9:
            return 2e-4 + drawn * 2e-3
        return 0.02 * self._chance.random() if drawn < 0.995 else 0.2 * self._chance.random()

    def open_calls(self) -> list["Call"]:
        return list(self._calls)

    def add(self, call: "Call") -> None:
        self._calls[call] = None

    def remove(self, call: "Call") -> None:
        self._calls.pop(call, None)

    def send(self, call: "Call", to: Process, what: Callable[[], None], *, not_before: float, late_s: float = 0.0) -> float:
        """Deliver one message of a call, in order; returns when. A partition holds it back, or ends the call."""
        blocked_until = self._healed_at.get(frozenset({call.client.name, call.server_name}), 0.0)
        at = max(max(self.world.now, blocked_until) + self.latency() + late_s, not_before + 1e-9)

        def deliver() -> None:
            if not call.is_cut:
                what()

        self.world.at(at, to, deliver)
        if blocked_until - self.world.now > KEEPALIVE_S:
            self.world.after(KEEPALIVE_S, None, lambda: call.cut("no sign of life"))
        return at

    def partition(self, one: str, other: str, for_s: float) -> None:
        """Nothing crosses between two processes for a while. What was sent crosses later, unless that takes too long."""
        self._healed_at[frozenset({one, other})] = self.world.now + for_s
        if for_s > KEEPALIVE_S:
            self.world.after(KEEPALIVE_S, None, lambda: self.cut(one, other))

    def cut(self, one: str, other: str) -> None:
        for call in self.open_calls():
            if {call.client.name, call.server_name} == {one, other}:
                call.cut("the connection broke")

    def stand_still(self, process: Process, for_s: float) -> None:
        """A frozen process keeps its connections until the other ends miss its signs of life."""
        if for_s > KEEPALIVE_S:
            self.world.after(KEEPALIVE_S, None, lambda: self._give_up(process))

    def die(self, process: Process) -> None:
        """The system closes the sockets of a process that has died."""
        for call in self.open_calls():
            if call.client is process:
                call.abandon()
            elif call.server is process:
                call.cut("the connection was closed")

    def _give_up(self, process: Process) -> None:
        for call in self.open_calls():
            if process in (call.client, call.server) and process.is_frozen:
                call.cut("no sign of life")


class SimChannel:
    """As much of `grpc.aio.Channel` as the generated stubs use."""

    def __init__(self, network: Network, client: Process, address: str) -> None:
        self._network = network
        self._client = client
        self._address = address

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, timeout=None: self._call(path, request_serializer(request), response_deserializer, timeout)

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self.unary_unary(path, request_serializer, response_deserializer)

    def stream_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A call that is opened early is no message yet: what meets a fate is its only message."""
        return lambda: OpenedCall(lambda request: self._call(path, request_serializer(request), response_deserializer, None))

    async def close(self, grace: float | None) -> None:
        for call in self._network.open_calls():
            if call.client is self._client and call.address == self._address:
                call.cancel()

    def _call(self, path: str, payload: bytes, deserialize: Any, timeout: float | None) -> "Call":
        call = Call(self._network, self._client, self._address, path, payload, deserialize, timeout)
        call.start()
        return call


class OpenedCall:
    """The client's end of a call that sends one message, some time after it was opened."""

    def __init__(self, send: Callable[[Any], "Call"]) -> None:
        self._send = send
        self._call: Call | None = None

    async def write(self, request: Any) -> None:
        self._call = self._send(request)

    async def done_writing(self) -> None:
        """The message was the only one."""

    def __await__(self) -> Generator[Any, None, Any]:
        assert self._call is not None
        return self._call.__await__()

    def cancel(self) -> None:
        if self._call:
            self._call.cancel()


class Call:
    """One call, both ends of it. The client's end is awaited or iterated, as grpc.aio's calls are."""

    def __init__(
        self,
        network: Network,
        client: Process,
        address: str,
        path: str,
        payload: bytes,
        deserialize: Callable[[bytes], Any],
        timeout_s: float | None,
    ) -> None:
        self.client = client
        self.address = address
        self.path = path
        self.method = path.rsplit("/", 1)[1]
        server = network.server_at(address)
        self.server = server.process if server else None
        self.server_name = address.partition(":")[0]
        self.is_cut = False
        self.fault = network.meet(self.method, client.name, self.server_name)
        self.leg: Any = None
        """What the call is about, noted by whoever watches."""
        self._network = network
        self._payload = payload
        self._deserialize = deserialize
        self._timeout_s = timeout_s
        self._messages: deque[bytes] = deque()
        self._status: Status | None = None
        self._has_begun = False
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent_at = self._answered_at = 0.0
        self.began_at = network.world.now

    def __str__(self) -> str:
        return f"{self.method} {self.client.name}→{self.server_name}"

    @property
    def fate(self) -> Fate | None:
        return self.fault.fate if self.fault else None

    # The client's end.

    def start(self) -> None:
        network, client = self._network, self.client
        network.add(self)
        network.world.note(client.name, f"{self}{f': {self.fate}' if self.fate else ''}")
        if self._timeout_s is not None:
            client.after(self._timeout_s, self._run_out)
        late_s = self.fault.delay_s if self.fault and self.fault.fate is Fate.LATE else 0.0
        if self.server is None:
            self._fail_soon(Status(UNAVAILABLE, "connection refused"))
        elif self.fate is Fate.UNSENT:
            self._fail_soon(Status(UNAVAILABLE, "connection reset"))
        elif self.fate is Fate.LOST:
            self._hang()
        else:
            self._sent_at = network.send(self, self.server, self._arrive, not_before=0.0, late_s=late_s)
            if self.fate is Fate.DOUBLED and self.method not in NEVER_DOUBLED:
                extra_s = self.fault.delay_s if self.fault else 0.0
                server = network.server_at(self.address)
                assert server is not None
                network.world.after(network.latency() + extra_s, self.server, lambda: server.serve_unheard(self))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._single().__await__()

    def __aiter__(self) -> "Call":
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is None:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        """Return the next message, or None at the end of the stream. Raises grpc.aio.AioRpcError."""
        while not self._messages:
            if self._status is not None:
                self._require_ok()
                return None
            await self._news()
        return self._deserialize(self._messages.popleft())

    async def wait_for_connection(self) -> None:
        while not self._has_begun:
            if self._status is not None:
                self._require_ok()
            await self._news()

    def cancel(self) -> None:
        if self._is_over:
            return
        self._end(Status(grpc.StatusCode.CANCELLED, "Locally cancelled"))
        self._tell_server()

    async def _single(self) -> Any:
        message = await self.read()
        if message is None:
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "no answer")
        return message

    async def _news(self) -> None:
        self._waiter = self.client.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _require_ok(self) -> None:
        status = self._status
        assert status is not None
        if status.code is grpc.StatusCode.CANCELLED and not status.trailing:
            raise asyncio.CancelledError
        if status.code is not grpc.StatusCode.OK:
            trailing = grpc.aio.Metadata(*status.trailing)
            raise grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, details=status.details)

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self, message: bytes, *, last: bool) -> None:
        if not self._is_over:
            self._has_begun = True
            self._messages.append(message)
            if last:
                self._end(OK)
            self._wake()

    def _begin(self) -> None:
        self._has_begun = True
        self._wake()

    def _end(self, status: Status) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._status = status
        if status.code is not grpc.StatusCode.OK:
            self._messages.clear()
        self._network.remove(self)
        self._wake()

    def _run_out(self) -> None:
        if not self._is_over:
            self._end(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self._tell_server()

    def _fail_soon(self, status: Status) -> None:
        self.client.after(self._network.latency(), lambda: self._end(status))

    def _hang(self) -> None:
        """Nobody will answer: a call without a deadline ends when its connection is given up."""
        if self._timeout_s is None:
            self._network.world.after(KEEPALIVE_S, None, lambda: self.cut("no sign of life"))

    def _tell_server(self) -> None:
        if self.server is not None and self.fate not in (Fate.UNSENT, Fate.LOST):
            after = self._sent_at + self._network.latency()
            self._sent_at = self._network.send(self, self.server, self._stop_serving, not_before=after)

    # Both ends at once.

    def cut(self, why: str) -> None:
        """The connection is gone: each end sees so, a frozen one when it goes on."""
        if self.is_cut:
            return
        self.is_cut = True
        self._network.world.after(self._network.latency(), self.client, lambda: self._end(Status(UNAVAILABLE, why)))
        if self.server is not None:
            self._network.world.after(self._network.latency(), self.server, self._stop_serving)
        self._network.remove(self)

    def abandon(self) -> None:
        """The client has died."""
        self._is_over = True
        self._network.remove(self)
        if self.server is not None:
            self._network.send(self, self.server, self._stop_serving, not_before=self._sent_at)

    # The server's end.

    def _arrive(self) -> None:
        server = self._network.server_at(self.address)
        if server is None or server.process is not self.server:
            self.cut("the connection was closed")
            return
        self._task = server.serve(self)
        if self._timeout_s is not None:
            self.server.after(self._timeout_s, self._stop_serving)

    def _stop_serving(self) -> None:
        if self._task and not self._task.done():
            self._task.cancel()

    @property
    def payload(self) -> bytes:
        return self._payload

    def answer(self, message: bytes, *, last: bool = False) -> None:
        """Send one message; the last one of a unary call ends it."""
        self._to_client(lambda: self._take(message, last=last))

    def begin_answer(self) -> None:
        self._to_client(self._begin)

    def finish(self, status: Status) -> None:
        """End the call from the server's side, unless its answer meets a fate."""
        self._to_client(lambda: self._end(status))

    def _to_client(self, what: Callable[[], None]) -> None:
        if self.fate is Fate.ANSWER_LOST:
            self._hang()
            return
        if self.fate is Fate.ANSWER_BROKEN:
            self.cut("the connection broke")
            return
        late_s = self.fault.delay_s if self.fault and self.fate is Fate.ANSWER_LATE else 0.0
        self._answered_at = self._network.send(self, self.client, what, not_before=self._answered_at, late_s=late_s)


class _Aborted(Exception):
    def __init__(self, status: Status) -> None:
        super().__init__(status.details)
        self.status = status


class Context:
    """As much of `grpc.aio.ServicerContext` as the services use."""

    def __init__(self, call: Call | None) -> None:
        self._call = call

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, bytes], ...]) -> None:
        raise _Aborted(Status(code, details, trailing))

    async def send_initial_metadata(self, metadata: Any) -> None:
        if self._call:
            self._call.begin_answer()

    def invocation_metadata(self) -> None:
        """Nobody traces here."""


class SimServer:
    """As much of `grpc.aio.Server` as the generated code uses; every handler is wrapped by the real `ErrorInterceptor`."""

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self.is_open = False
        self._network = network
        self._handlers: dict[str, Any] = {}
        self._guarded: dict[str, Any] = {}
        self._running: dict[asyncio.Task[None], None] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """All methods come as registered handlers too."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self._handlers.update({f"/{service}/{method}": handler for method, handler in handlers.items()})

    def open(self, address: str) -> None:
        self.is_open = True
        self._network.listen(address, self)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; those that run may end by themselves for a while, then they are cancelled."""
        self.is_open = False
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running))

    def serve(self, call: Call) -> asyncio.Task[None]:
        task = self.process.loop.create_task(self._serve(call), name=f"serve {call}")
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    def serve_unheard(self, call: Call) -> None:
        """Execute a call a second time; nobody hears the answer."""
        if self.is_open:
            task = self.process.loop.create_task(self._serve_unheard(call), name=f"serve {call} again")
            self._running[task] = None
            task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _serve(self, call: Call) -> None:
        handler = self._handler(call.path)
        request = handler.request_deserializer(call.payload)
        self._network.watch(call, "request", request)
        context = Context(call)
        try:
            if handler.response_streaming:
                async with aclosing(handler.unary_stream(request, context)) as messages:
                    async for message in messages:
                        self._network.watch(call, "answer", message)
                        call.answer(handler.response_serializer(message))
            else:
                message = await _answer(handler, request, context)
                self._network.watch(call, "answer", message)
                call.answer(handler.response_serializer(message), last=True)
                return
        except _Aborted as aborted:
            call.finish(aborted.status)
        except asyncio.CancelledError:
            call.finish(
                Status(UNAVAILABLE, "the server has stopped") if not self.is_open else Status(grpc.StatusCode.CANCELLED)
            )
            raise
        else:
            call.finish(OK)

    async def _serve_unheard(self, call: Call) -> None:
        handler = self._handler(call.path)
        request = handler.request_deserializer(call.payload)
        self._network.watch(call, "request", request)
        try:
            if handler.response_streaming:
                async with aclosing(handler.unary_stream(request, Context(None))) as messages:
                    async for _ in messages:
                        pass
            else:
                self._network.watch(call, "answer", await _answer(handler, request, Context(None)))
        except _Aborted:
            return

    def _handler(self, path: str) -> Any:
        if path not in self._guarded:
            self._guarded[path] = _guard(self._handlers[path])
        return self._guarded[path]


async def _answer(handler: Any, request: Any, context: Context) -> Any:
    if handler.request_streaming:
        return await handler.stream_unary(_only(request), context)
    return await handler.unary_unary(request, context)


async def _only(message: Any) -> AsyncIterator[Any]:
    yield message


def _guard(handler: Any) -> Any:
    async def continuation(details: Any) -> Any:
        return handler

    guarding = ErrorInterceptor(admit_all).intercept_service(continuation, None)  # type: ignore[arg-type]
    try:
        guarding.send(None)
    except StopIteration as wrapped:
        return wrapped.value
    raise AssertionError("the interceptor waits for something")
