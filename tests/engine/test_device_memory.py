"""Memory beside a device's pool: what others write into, and slots out of which its units are sent."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch

from twostep.core.errors import ConfigError
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import OpenMemory
from twostep.engine.torch_kv_cache import TorchKVCache

LAYOUT = KVLayout(num_layers=2, num_kv_heads=1, head_dim=4, block_tokens=32, dtype="bfloat16")
Open = Callable[[TorchKVCache, int], OpenMemory]
PLACES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=PLACES)
def cache(request: pytest.FixtureRequest) -> TorchKVCache:
    cache = TorchKVCache(LAYOUT, 5, torch.device(request.param))
    cache.words.copy_(torch.arange(cache.words.numel(), dtype=torch.int32).view(cache.words.shape))
    return cache


@pytest.mark.parametrize("open_memory", [TorchKVCache.open_memory, TorchKVCache.open_host_memory])
def test_open_memory_is_zeroed_lies_where_it_says_and_is_read_anywhere(cache: TorchKVCache, open_memory: Open) -> None:
    memory = open_memory(cache, 64)
    region = memory.region()
    is_on_device = cache.words.is_cuda and open_memory is TorchKVCache.open_memory
    assert (region.num_bytes, region.kind) == (64, "VRAM" if is_on_device else "DRAM")
    assert memory.read(0, 64) == bytes(64)
    if region.kind == "DRAM":
        ctypes.memmove(region.address + 8, b"written", 7)
        assert memory.read(8, 8) == b"written\0"
    with pytest.raises(ValueError, match="outside"):
        memory.read(60, 5)


def test_memory_that_cannot_be_had_is_a_mistake_in_the_configuration(cache: TorchKVCache) -> None:
    with pytest.raises(ConfigError, match="landing_bytes"):
        cache.open_memory(1 << 60)
    with pytest.raises(ConfigError, match=r"cannot pin .* to stage KV in"):
        cache.staging(LAYOUT.layer_block_bytes, 1 << 50)


def test_units_of_the_pool_are_copied_into_slots_in_the_order_asked_for(cache: TorchKVCache) -> None:
    staging = cache.staging(LAYOUT.layer_block_bytes, 4)
    copy = staging.copy(np.array([9, 0, 6], np.int32), 1)
    while not copy.is_done():
        pass
    region = staging.region()
    slots = np.frombuffer(ctypes.string_at(region.address, region.num_bytes), np.uint32).reshape(4, -1)
    units = cache.words.cpu().numpy().view(np.uint32).reshape(10, -1)
    assert slots.tolist() == [[0] * units.shape[1], *(units[unit].tolist() for unit in (9, 0, 6))]
