import pytest

from twostep.core.kv_layout import KVLayout
from twostep.core.memory import MemoryRegion

LAYOUT = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_tokens=32, dtype="bfloat16")


def test_sizes_multiply_from_head_to_block() -> None:
    assert LAYOUT.head_token_bytes == 256
    assert LAYOUT.layer_block_bytes == 24_576
    assert LAYOUT.block_bytes == 737_280


def test_the_pool_is_layer_block_head_token_words() -> None:
    assert LAYOUT.pool_shape(7) == (30, 7, 3, 32, 64)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2)])
def test_a_started_block_counts_as_a_whole_one(tokens: int, blocks: int) -> None:
    assert LAYOUT.num_blocks(tokens) == blocks


def test_the_layout_id_tells_types_apart_but_not_block_sizes() -> None:
    small = KVLayout(30, 3, 64, block_tokens=64, dtype="bfloat16")
    wide = KVLayout(30, 3, 64, block_tokens=32, dtype="float32")
    assert small.layout_id == LAYOUT.layout_id != wide.layout_id


def test_a_slice_keeps_kind_and_device() -> None:
    region = MemoryRegion(1000, 100, "VRAM", 3)
    assert region.slice(40, 60) == MemoryRegion(1040, 60, "VRAM", 3)


@pytest.mark.parametrize(("offset", "size"), [(-1, 5), (0, 101), (100, 1), (10, -1)])
def test_a_slice_outside_its_region_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="lies outside a region of 100 bytes"):
        MemoryRegion(1000, 100).slice(offset, size)
