"""One UCX worker: sends and receives tagged messages, and ends everything in the only safe order. No other file knows ucxx.

A request of ucxx keeps neither its memory nor its endpoint, and a worker that ends hands messages that nobody wanted to
memory of its own: so memory is held here until UCX has let go of it, and messages are turned away before the end. One
thread at a time.
"""

import importlib
import importlib.util
import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostep.core.errors import ConfigError
from twostep.kv_transfer.transport import WriteState
from twostep.kv_transfer.ucx_environment import keep_tcp, keep_ucx_quiet, network_devices, require_named_device
from twostep.kv_transfer.ucx_protocol import CONTROL, MESSAGE_BYTES

Bytes = NDArray[np.uint8]
ONE_SEGMENT = "256k"
SETTINGS = {"TCP_TX_SEG_SIZE": ONE_SEGMENT, "TCP_RX_SEG_SIZE": ONE_SEGMENT}
ALWAYS = {"RNDV_THRESH": "inf"}
"""No rendezvous: to end a connection in the middle of one crashes UCX (1.21), and a receive that has begun cannot be given up.
What fits into one segment is there or not."""
SAME_MACHINE = frozenset({"self", "sysv", "posix", "cma", "xpmem", "knem"})
MAX_CONTROL_BYTES = 1 << 20
_never_freed: list["Request"] = []
"""What UCX may still be writing to when a worker has ended: control messages that a peer has left half sent. Few and small."""
log = logging.getLogger(__name__)


class UcxFailure(Exception):
    """UCX has refused a call."""


class Request:
    """A message under way, and the memory that UCX uses meanwhile. Dropping it gives up a receive that has no match yet."""

    __slots__ = ("_native", "memory")

    def __init__(self, native: Any, memory: Bytes) -> None:
        self._native = native
        self.memory = memory

    @property
    def is_over(self) -> bool:
        return bool(self._native.completed)

    def state(self, errors: type[Exception]) -> WriteState:
        if not self.is_over:
            return WriteState.PENDING
        try:
            self._native.check_error()
        except errors:
            return WriteState.FAILED
        return WriteState.DONE


@dataclass(frozen=True, slots=True)
class ControlMessage:
    tag: int
    content: bytes


class Endpoint:
    """The way to one peer. It knows when the peer has died."""

    def __init__(self, ucxx: "_Ucxx", worker: Any, address: bytes) -> None:
        self._ucxx = ucxx
        self._worker = worker
        self._sent: deque[Request] = deque()
        with ucxx.failures():
            known = ucxx.api.UCXAddress.create_from_buffer(address)
            self._native = worker.create_endpoint_from_worker_address(known, True)

    @property
    def is_alive(self) -> bool:
        return self._native is not None and bool(self._native.alive)

    def send(self, memory: Bytes, tag: int) -> Request:
        """Start sending. Raises UcxFailure."""
        if self._native is None:
            raise UcxFailure("the endpoint is closed")
        _let_go(self._sent)
        with self._ucxx.failures():
            request = Request(self._native.tag_send(self._ucxx.array(memory), self._ucxx.api.UCXXTag(tag)), memory)
        self._sent.append(request)
        return request

    def close(self) -> None:
        """End it, and every message on it, at once. Idempotent."""
        if self._native is None:
            return
        self._native.close_blocking()
        # Only now has UCX let go of what was being sent.
        self._worker.progress()
        self._sent.clear()
        self._native = None


class UcxWorker:
    """What listens on UCX's ports. `close` ends everything that it has handed out."""

    def __init__(self) -> None:
        """Raises ConfigError, in one line, when ucxx is not installed, cannot start, or sees no network device."""
        self._ucxx = _Ucxx()
        keep_tcp()
        require_named_device(network_devices())
        settings = {name: value for name, value in SETTINGS.items() if f"UCX_{name}" not in os.environ} | ALWAYS
        try:
            with self._ucxx.failures():
                self._context = self._ucxx.api.UCXContext(settings, feature_flags=(self._ucxx.api.Feature.TAG,))
                require_named_device(_network_devices(self._context.info))
                self._worker = self._ucxx.api.UCXWorker(self._context)
        except UcxFailure as cause:
            raise ConfigError(f"UCX cannot start: {cause}: check UCX_TLS and UCX_NET_DEVICES") from cause
        self._endpoints: list[Endpoint] = []
        self._received: deque[Request] = deque()
        self._reading: list[tuple[int, Request]] = []
        self._discarded = np.zeros(1, np.uint8)
        self._control, self._anything = self._ucxx.marked(CONTROL), self._ucxx.marked(0)

    def address(self) -> bytes:
        """Return where peers find this worker."""
        address: bytes = self._worker.address.tobytes()
        return address

    def connect(self, address: bytes) -> Endpoint:
        """Open the way to the worker at `address`, without waiting for it. Raises UcxFailure."""
        endpoint = Endpoint(self._ucxx, self._worker, address)
        self._endpoints = [one for one in self._endpoints if one.is_alive]
        self._endpoints.append(endpoint)
        return endpoint

    def receive(self, memory: Bytes, tag: int) -> Request:
        """Take the one message with this tag into `memory`, which must outlive this worker. Raises UcxFailure."""
        with self._ucxx.failures():
            native = self._worker.tag_recv(self._ucxx.array(memory), self._ucxx.api.UCXXTag(tag))
        return Request(native, memory)

    def discard(self, tag: int) -> None:
        """Take the one message with this tag nowhere: its sender is rid of it, and told nothing."""
        _let_go(self._received)
        self._received.append(self.receive(self._discarded, tag))

    def progress(self) -> bool:
        """Let UCX take one step; return whether it had one to take."""
        return bool(self._worker.progress_once())

    def control_messages(self) -> list[ControlMessage]:
        """Return the control messages that have come."""
        while (found := self._probe(self._control)).matched:
            fits = found.length <= MAX_CONTROL_BYTES
            content = np.empty(found.length, np.uint8) if fits else self._discarded
            self._reading.append((found.sender_tag, self._take(found, content)))
        if not self._reading:
            return []
        read = [one for one in self._reading if one[1].is_over]
        self._reading = [one for one in self._reading if not one[1].is_over]
        done = ((tag, request) for tag, request in read if request.state(self._ucxx.errors) is WriteState.DONE)
        return [ControlMessage(tag, request.memory.tobytes()) for tag, request in done]

    def close(self) -> None:
        """End all endpoints, then all receives, then turn away what is left, then end the worker. Idempotent."""
        if self._worker is None:
            return
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints.clear()
        self._received.clear()
        self._worker.progress()
        while (left := self._probe(self._anything)).matched:
            self._received.append(self._take(left, self._discarded))
            self._worker.progress()
        _never_freed.extend(request for _, request in self._reading if not request.is_over)
        self._reading.clear()
        self._received.clear()
        self._worker = None
        self._context = None

    def _take(self, found: Any, memory: Bytes) -> Request:
        return Request(self._worker.tag_recv_with_handle(self._ucxx.array(memory), found), memory)

    def _probe(self, marked: "_Marked") -> Any:
        return self._worker.tag_probe(marked.tag, marked.mask, True)


@dataclass(frozen=True, slots=True)
class _Marked:
    """Matches every tag that has the bits of `tag`."""

    tag: Any
    mask: Any


class _Ucxx:
    """The library, loaded."""

    def __init__(self) -> None:
        if importlib.util.find_spec("ucxx") is None:
            raise ConfigError("UCX is not installed: pip install 'twostep[ucx]', or choose --transport nixl")
        keep_ucx_quiet()
        try:
            with _environment_kept():
                self.api: Any = importlib.import_module("ucxx._lib.libucxx")
                self.array: Any = importlib.import_module("ucxx._lib.arr").Array
        except (ImportError, OSError) as cause:
            raise ConfigError(f"UCX (ucxx) is installed but cannot be loaded: {cause}") from cause
        self.errors: type[Exception] = self.api.UCXError

    def marked(self, bits: int) -> _Marked:
        return _Marked(self.api.UCXXTag(bits), self.api.UCXXTagMask(bits))

    @contextmanager
    def failures(self) -> Iterator[None]:
        try:
            yield
        except self.errors as cause:
            raise UcxFailure(str(cause)) from cause


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what ucxx says to UCX in the environment: it is meant for GPUs, and would reach every other user of UCX."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            if name.startswith("UCX_"):
                del os.environ[name]


def messages_of(memory: Bytes) -> Iterator[Bytes]:
    """Cut `memory` into messages."""
    for start in range(0, len(memory), MESSAGE_BYTES):
        yield memory[start : start + MESSAGE_BYTES]


def _let_go(requests: deque[Request]) -> None:
    while requests and requests[0].is_over:
        requests.popleft()


def _network_devices(info: str) -> list[str]:
    """Return the devices that UCX itself sees, from what it tells of a context: without its RDMA modules, interfaces only."""
    resources = [line.split()[-1].partition("/") for line in info.splitlines() if "resource" in line]
    return sorted({device for transport, _, device in resources if transport not in SAME_MACHINE})
