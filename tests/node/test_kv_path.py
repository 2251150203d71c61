"""The way that KV takes is found out before a node is ready, and told by name; a GPU's may have to go through host memory."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from twostep.core.errors import ConfigError, TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import Staging
from twostep.core.memory import HostMemory, MemoryRegion
from twostep.engine.kv_cache import HostKVCache
from twostep.kv_transfer.carrier import Traffic
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.staged_transport import StagedTransport
from twostep.kv_transfer.transport import Write
from twostep.node.config import NodeConfig
from twostep.node.kv_path import KVPath, Way, find_kv_path, landing_memory, slow_path, transport_along
from twostep.tests.kv_transfer.host_memory import LateStaging
from twostep.tests.kv_transfer.nodes import node

LAYOUT = KVLayout(num_layers=2, num_kv_heads=1, head_dim=4, block_tokens=32, dtype="float32")
STAGED = KVPath(Way.HOST_STAGED, 1e9, "VRAM cannot be registered")


class GpuMemory(HostMemory):
    """Memory on the host that says it is a GPU's."""

    def region(self) -> MemoryRegion:
        return replace(super().region(), kind="VRAM")


class GpuCache(HostKVCache):
    def region(self) -> MemoryRegion:
        return replace(super().region(), kind="VRAM")

    def open_memory(self, num_bytes: int) -> HostMemory:
        return GpuMemory(num_bytes, "landing_bytes")

    def staging(self, unit_bytes: int, num_slots: int) -> Staging:
        return LateStaging(super().region(), unit_bytes, min(num_slots, 4))


class Wire(LocalTransport):
    """Counts what it sends as `carrier`'s; reaches a GPU's memory, or refuses to."""

    carrier, reaches_gpus = "rdma", True

    def __init__(self, fabric: LocalFabric, node: NodeRef) -> None:
        super().__init__(fabric, node)
        self._sent = 0

    def traffic(self) -> Traffic:
        return Traffic(**({f"{self.carrier}_bytes": self._sent} if self.carrier else {}))

    def register_landing(self, landing: MemoryRegion) -> None:
        super().register_landing(self._reached(landing))

    def register_source(self, source: MemoryRegion, unit_bytes: int) -> None:
        super().register_source(self._reached(source), unit_bytes)

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        self._sent += len(pattern)
        return super().post_probe(peer, landing_offset, pattern, note)

    def _reached(self, region: MemoryRegion) -> MemoryRegion:
        if region.kind == "VRAM" and not self.reaches_gpus:
            raise TransferFailed("nixl: VRAM cannot be registered: no GPUDirect")
        return replace(region, kind="DRAM")


def wires(carrier: str, *, reaches_gpus: bool = True) -> Callable[[NodeRef], Wire]:
    fabric = LocalFabric()
    kind = type("Some", (Wire,), {"carrier": carrier, "reaches_gpus": reaches_gpus})
    return lambda node: kind(fabric, node)


@pytest.mark.parametrize(
    ("cache", "carrier", "reaches_gpus", "way"),
    [
        (HostKVCache, "tcp", True, Way.TCP),
        (HostKVCache, "rdma", True, Way.RDMA),
        (HostKVCache, "", True, Way.MEMORY),
        (GpuCache, "", True, Way.NVLINK),
        (GpuCache, "rdma", True, Way.RDMA),
        (GpuCache, "tcp", True, Way.TCP),
        (GpuCache, "rdma", False, Way.HOST_STAGED),
        (GpuCache, "", False, Way.HOST_STAGED),
        (GpuCache, "tcp", False, Way.TCP),
    ],
)
def test_the_way_is_named_by_where_the_pool_lies_and_what_carries(
    cache: type[HostKVCache], carrier: str, reaches_gpus: bool, way: Way
) -> None:
    path = find_kv_path(cache(LAYOUT, 2), wires(carrier, reaches_gpus=reaches_gpus))
    assert (path.way, path.is_staged) == (way, not reaches_gpus)
    assert ("no GPUDirect" in path.why_staged) is not reaches_gpus


def test_a_node_that_may_not_stage_is_never_ready_and_says_why() -> None:
    assert slow_path(STAGED, NodeConfig()) == ""
    told = slow_path(STAGED, NodeConfig(allow_host_staged=False))
    assert "allow_host_staged is false" in told
    assert "VRAM cannot be registered" in told
    assert slow_path(KVPath(Way.RDMA, 1e9), NodeConfig(allow_host_staged=False)) == ""
    assert slow_path(None, NodeConfig(allow_host_staged=False)) == ""


def test_staged_kv_goes_through_slots_in_host_memory_and_other_kv_does_not() -> None:
    cache = GpuCache(LAYOUT, 2)
    inner = wires("rdma", reaches_gpus=False)(node("p"))
    assert transport_along(KVPath(Way.RDMA, 1e9), inner, cache) is inner
    staged = transport_along(STAGED, inner, cache)
    assert isinstance(staged, StagedTransport)
    staged.register_source(cache.region(), LAYOUT.layer_block_bytes)
    assert "host memory" in staged.path


@pytest.mark.parametrize(("path", "kind"), [(None, "VRAM"), (KVPath(Way.RDMA, 1e9), "VRAM"), (STAGED, "DRAM")])
def test_peers_write_into_the_pools_own_kind_of_memory_where_the_transport_reaches_it(path: KVPath | None, kind: str) -> None:
    assert landing_memory(path, GpuCache(LAYOUT, 2), 64).region().kind == kind


def test_what_moves_no_bytes_at_all_starts_no_node() -> None:
    class Deaf(Wire):
        def register_landing(self, landing: MemoryRegion) -> None:
            raise TransferFailed("nothing can be registered")

    fabric = LocalFabric()
    for cache in (HostKVCache, GpuCache):
        with pytest.raises(ConfigError, match="UCX_TLS"):
            find_kv_path(cache(LAYOUT, 2), lambda node: Deaf(fabric, node))
