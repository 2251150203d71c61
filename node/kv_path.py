"""Which way KV takes into and out of this node's memory, found out by moving some before anybody relies on it."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from twostep.core.errors import ConfigError, TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.kv_memory import OpenMemory
from twostep.core.memory import HostMemory
from twostep.engine.kv_cache import KVCache
from twostep.kv_transfer.carrier import Carrier
from twostep.kv_transfer.probe import ProbeResult
from twostep.kv_transfer.self_test import move_some_bytes
from twostep.kv_transfer.staged_transport import StagedTransport
from twostep.kv_transfer.transport import Transport
from twostep.node.config import NodeConfig

OpenTransport = Callable[[NodeRef], Transport]
STAGING_BYTES = 256 << 20
"""Several of a sender's longest writes: while one crosses the wire, the next is copied."""


class Way(enum.StrEnum):
    MEMORY = "memory"
    """Between pools in host memory of one machine."""
    NVLINK = "nvlink"
    """Between GPUs of one machine, or within one."""
    RDMA = "rdma"
    HOST_STAGED = "host-staged"
    """Through host memory, as the transport cannot reach the GPU's."""
    TCP = "tcp"


@dataclass(frozen=True, slots=True)
class KVPath:
    """`why_staged` is why a GPU's KV goes through host memory; empty where it does not."""

    way: Way
    bytes_per_s: float
    why_staged: str = ""

    @property
    def is_staged(self) -> bool:
        return bool(self.why_staged)


def find_kv_path(kv: KVCache, open_transport: OpenTransport) -> KVPath:
    """Return the way of this node's KV, by what a test between two ends of this process took.

    Two nodes that meet test theirs again. Raises ConfigError when no bytes move at all.
    """
    if kv.region().kind == "DRAM":
        moved = _moved(open_transport, _host_memory)
        return KVPath(_way(moved.carrier, Way.MEMORY), moved.bytes_per_s)
    try:
        moved = move_some_bytes(open_transport, open_memory=kv.open_memory)
    except (TransferFailed, ConfigError) as cause:
        # Some transports cannot reach this GPU, others none. Where there is nothing at all, the next attempt says so again.
        moved = _moved(open_transport, kv.open_host_memory)
        return KVPath(_way(moved.carrier, Way.HOST_STAGED), moved.bytes_per_s, str(cause))
    return KVPath(_way(moved.carrier, Way.NVLINK), moved.bytes_per_s)


def transport_along(path: KVPath, transport: Transport, kv: KVCache) -> Transport:
    """Return what sends out of the pool, or out of host memory where the transport cannot read the pool."""
    if not path.is_staged:
        return transport
    return StagedTransport(transport, lambda unit_bytes: kv.staging(unit_bytes, max(1, STAGING_BYTES // unit_bytes)))


def slow_path(path: KVPath | None, config: NodeConfig) -> str:
    """Return why KV goes a slower way than it may; empty when it does not."""
    if path is None or not path.is_staged or config.allow_host_staged:
        return ""
    return f"KV goes through host memory, and allow_host_staged is false: {path.why_staged}"


def landing_memory(path: KVPath | None, kv: KVCache, num_bytes: int) -> OpenMemory:
    """Return memory that peers can write into. Raises ConfigError when it cannot be had."""
    return kv.open_host_memory(num_bytes) if path and path.is_staged else kv.open_memory(num_bytes)


def _way(carrier: Carrier, otherwise: Way) -> Way:
    """TCP is the slowest, whatever lies at its ends; staged KV is staged, whatever carries it then."""
    if carrier is Carrier.TCP:
        return Way.TCP
    return Way.RDMA if carrier is Carrier.RDMA and otherwise is not Way.HOST_STAGED else otherwise


def _moved(open_transport: OpenTransport, open_memory: Callable[[int], OpenMemory]) -> ProbeResult:
    """What does not even move bytes on one machine would fail every handshake."""
    try:
        return move_some_bytes(open_transport, open_memory=open_memory)
    except TransferFailed as cause:
        raise ConfigError(f"transport: {cause.message}: check UCX_TLS and UCX_NET_DEVICES") from cause


def _host_memory(num_bytes: int) -> OpenMemory:
    return HostMemory(num_bytes, "self-test")
