"""Moves bytes with NIXL over UCX: RDMA, TCP, shared memory or NVLink, whichever both sides have. The only file that knows NIXL.

The agent runs without NIXL's progress thread, which spins at a third of a core when idle; the sender's and the receiver's
own polling drives progress. Its read/write synchronisation lets other threads connect peers while one thread posts.
"""

import importlib
import importlib.util
import itertools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostep.core.errors import ConfigError, TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.carrier import Traffic, read_traffic
from twostep.kv_transfer.transport import PeerLanding, Units, Write, WriteState, require_units
from twostep.kv_transfer.ucx_environment import keep_tcp, keep_ucx_quiet, what_narrows_ucx

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Peer:
    landing: PeerLanding
    agent_name: str
    descriptors: Any
    num_units: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    peer: _Peer
    handle: Any
    staged: "_Staged | None" = None


@dataclass(frozen=True, slots=True)
class _Staged:
    """A probe's pattern in memory that is registered for as long as its write is in flight."""

    pattern: NDArray[np.uint8]
    registered: Any


class NixlTransport:
    """Implements `Transport` with one NIXL agent per node, for host and device memory alike."""

    name = "nixl"

    def __init__(self, node: NodeRef) -> None:
        """Start the agent. Raises ConfigError, in one line, when NIXL is not installed or cannot start."""
        api = _load_nixl()
        keep_tcp()
        self._errors: tuple[type[Exception], ...] = _error_classes(api)
        self._agent = _start_agent(api, str(node))
        self._registered: list[Any] = []
        self._has_landing = False
        self._source: Any = None
        self._num_source_units = 0
        self._unit_bytes = 0
        self._peers: dict[NodeRef, _Peer] = {}
        # A peer's descriptors are not released while another thread makes a transfer from them.
        self._peers_lock = threading.Lock()
        self._in_flight: dict[Write, _InFlight] = {}
        self._dead_on_post: set[Write] = set()
        self._numbers = itertools.count()

    @property
    def path(self) -> str:
        """NIXL names its backend; which device UCX took for a peer, it tells nobody. What narrows its choice is told."""
        return "/".join((self.name, "ucx", *what_narrows_ucx()))

    def traffic(self) -> Traffic:
        return read_traffic()

    def register_landing(self, landing: MemoryRegion) -> None:
        self._register(landing)
        self._has_landing = True

    def metadata(self) -> bytes:
        if not self._has_landing:
            raise ValueError("no landing memory is registered")
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def notifications(self) -> list[bytes]:
        by_peer: dict[str, list[bytes]] = self._agent.get_new_notifs()
        return [note for notes in by_peer.values() for note in notes]

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        self._register(source)
        self._unit_bytes = unit_bytes
        self._num_source_units = source.num_bytes // unit_bytes
        with self._transfer_errors(f"{source.kind} cannot be sent from"):
            self._source = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", _strided(source, unit_bytes), source.kind)

    def connect(self, peer: PeerLanding) -> None:
        if self._source is None:
            raise ValueError("no source memory is registered")
        self.forget(peer.node)
        with self._transfer_errors(f"{peer.node} cannot be connected"):
            agent_name = self._agent.add_remote_agent(peer.metadata)
            if isinstance(agent_name, bytes):
                agent_name = agent_name.decode()
            descriptors = self._prepare(peer, agent_name)
        self._peers[peer.node] = _Peer(peer, agent_name, descriptors, peer.region.num_bytes // self._unit_bytes)

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        write = Write(peer, next(self._numbers))
        with self._death_shows_in_poll(write):
            with self._peers_lock:
                target = self._connected(peer)
                require_units(source_units, landing_units, self._num_source_units, target.num_units)
                handle = self._agent.make_prepped_xfer(
                    "WRITE", self._source, source_units, target.descriptors, landing_units, note
                )
            self._in_flight[write] = _InFlight(target, handle)
            self._agent.transfer(handle)
        return write

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        target = self._connected(peer)
        landing = target.landing.region.slice(landing_offset, len(pattern))
        staged = self._stage(pattern)
        write = Write(peer, next(self._numbers))
        with self._death_shows_in_poll(write):
            here = self._agent.get_xfer_descs([(staged.pattern.ctypes.data, len(pattern), 0)], "DRAM")
            there = self._agent.get_xfer_descs([(landing.address, len(pattern), landing.device)], landing.kind)
            handle = self._agent.initialize_xfer("WRITE", here, there, target.agent_name, note)
            self._in_flight[write] = _InFlight(target, handle, staged)
            self._agent.transfer(handle)
        return write

    def poll(self, write: Write) -> WriteState:
        if write in self._dead_on_post:
            self._dead_on_post.remove(write)
            self._end(write)
            return WriteState.FAILED
        state = self._state(self._in_flight[write])
        if state is not WriteState.PENDING:
            self._end(write)
        return state

    def forget(self, peer: NodeRef) -> None:
        with self._peers_lock:
            known = self._peers.pop(peer, None)
            if known is None:
                return
            known.descriptors.release()
        try:
            self._agent.remove_remote_agent(known.agent_name)
        except self._errors as cause:
            # NIXL drops a dead peer by itself; there is nothing left to remove then.
            log.info("peer was gone already", extra={"peer": str(peer), "reason": str(cause)})

    def close(self) -> None:
        if self._agent is None:
            return
        for write in list(self._in_flight):
            self._end(write)
        for peer in list(self._peers):
            self.forget(peer)
        if self._source is not None:
            self._source.release()
            self._source = None
        while self._registered:
            self._agent.deregister_memory(self._registered.pop())
        # Only the agent's end closes its connections: from then on peers see that it is gone.
        self._agent = None

    def _register(self, region: MemoryRegion) -> None:
        described = [(region.address, region.num_bytes, region.device, "")]
        with self._transfer_errors(f"{region.kind} cannot be registered"):
            self._registered.append(self._agent.register_memory(described, region.kind))

    def _prepare(self, peer: PeerLanding, agent_name: str) -> Any:
        try:
            return self._agent.prep_xfer_dlist(agent_name, _strided(peer.region, self._unit_bytes), peer.region.kind)
        except self._errors:
            self._agent.remove_remote_agent(agent_name)
            raise

    def _connected(self, peer: NodeRef) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            raise TransferFailed(f"{peer} is not connected")
        return known

    def _stage(self, pattern: bytes) -> _Staged:
        copy = np.frombuffer(pattern, np.uint8).copy()
        return _Staged(copy, self._agent.register_memory([(copy.ctypes.data, len(copy), 0, "")], "DRAM"))

    def _state(self, entry: _InFlight) -> WriteState:
        if self._peers.get(entry.peer.landing.node) is not entry.peer:
            return WriteState.FAILED
        try:
            state = self._agent.check_xfer_state(entry.handle)
        except self._errors as cause:
            log.warning("write failed", extra={"peer": str(entry.peer.landing.node), "reason": str(cause)})
            return WriteState.FAILED
        return {"DONE": WriteState.DONE, "PROC": WriteState.PENDING}.get(state, WriteState.FAILED)

    def _end(self, write: Write) -> None:
        entry = self._in_flight.pop(write, None)
        if entry is None:
            return
        try:
            entry.handle.release()
        except self._errors as cause:
            log.warning("handle is kept until the agent ends", extra={"peer": str(write.peer), "reason": str(cause)})
        if entry.staged:
            self._agent.deregister_memory(entry.staged.registered)

    @contextmanager
    def _death_shows_in_poll(self, write: Write) -> Iterator[None]:
        try:
            yield
        except self._errors as cause:
            log.warning("write could not be posted", extra={"peer": str(write.peer), "reason": str(cause)})
            self._dead_on_post.add(write)

    @contextmanager
    def _transfer_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as cause:
            raise TransferFailed(f"{what}: {cause}") from cause


def _strided(region: MemoryRegion, unit_bytes: int) -> NDArray[np.uint64]:
    """Return one compressed descriptor for all whole units of the region: (address, length, device, stride, count)."""
    row = (region.address, unit_bytes, region.device, unit_bytes, region.num_bytes // unit_bytes)
    return np.array([row], np.uint64)


def _load_nixl() -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    keep_ucx_quiet()
    installed = [package for package in PACKAGES if importlib.util.find_spec(package)]
    if not installed:
        raise ConfigError("NIXL is not installed: pip install 'twostep[node]', or choose --transport ucx or local")
    try:
        api = importlib.import_module(f"{installed[0]}._api")
    except (ImportError, OSError) as cause:
        raise ConfigError(f"NIXL ({installed[0]}) is installed but cannot be loaded: {cause}") from cause
    _log_as_we_do()
    return api


def _log_as_we_do() -> None:
    # NIXL's own handler prints to stdout, which belongs to the program.
    nixl_logger = logging.getLogger("nixl")
    nixl_logger.handlers.clear()
    nixl_logger.propagate = True


def _error_classes(api: Any) -> tuple[type[Exception], ...]:
    known = vars(api.nixlBind).values()
    return tuple(value for value in known if isinstance(value, type) and issubclass(value, Exception))


def _start_agent(api: Any, name: str) -> Any:
    config = api.nixl_agent_config(
        enable_prog_thread=False, backends=["UCX"], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    )
    failures: tuple[type[Exception], ...] = (RuntimeError, *_error_classes(api))
    try:
        agent = api.nixl_agent(name, config)
    except failures as cause:
        raise ConfigError(f"NIXL cannot start its UCX backend: {cause}; check UCX_TLS and UCX_NET_DEVICES") from cause
    if "UCX" not in agent.backends:
        raise ConfigError("NIXL has no UCX plugin: reinstall nixl-cu12 (or the nixl package of your CUDA version)")
    return agent
