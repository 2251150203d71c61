"""Memory as a transport sees it: an address range on the host or on a device; and where that on the host comes from."""

import mmap
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from twostep.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """`num_bytes` bytes at `address`. The owner keeps the memory alive for as long as anybody uses the region."""

    address: int
    num_bytes: int
    kind: Literal["DRAM", "VRAM"] = "DRAM"
    device: int = 0

    def slice(self, offset: int, num_bytes: int) -> "MemoryRegion":
        """Return the piece [offset, offset + num_bytes). Raises ValueError when it does not lie inside."""
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.num_bytes:
            raise ValueError(f"[{offset}, {offset + num_bytes}) lies outside a region of {self.num_bytes} bytes")
        return MemoryRegion(self.address + offset, num_bytes, self.kind, self.device)


class HostMemory:
    """Page-aligned, zeroed memory with every page in place. `key` is what asks for it. Raises ConfigError as `host_pages`."""

    def __init__(self, num_bytes: int, key: str) -> None:
        self.bytes = np.frombuffer(touched_host_pages(num_bytes, key), dtype=np.uint8)

    def region(self) -> MemoryRegion:
        return MemoryRegion(self.bytes.ctypes.data, self.bytes.nbytes)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return what lies there. Raises ValueError when that is outside."""
        self.region().slice(offset, num_bytes)
        return self.bytes[offset : offset + num_bytes].tobytes()


def host_pages(num_bytes: int, key: str) -> mmap.mmap:
    """Return zeroed, page-aligned memory, on huge pages where the system grants them.

    Raises ConfigError, naming the `key` that asks for it, when it cannot be had.
    """
    pages = _map(num_bytes, mmap.MAP_PRIVATE, key)
    # Blocks are read in any order: with small pages, attention would wait for their translations most of the time.
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def touched_host_pages(num_bytes: int, key: str) -> mmap.mmap:
    """The same, with every page in place already: who writes there first would wait for that, page by page."""
    return _map(num_bytes, mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0), key)


def _map(num_bytes: int, flags: int, key: str) -> mmap.mmap:
    try:
        return mmap.mmap(-1, num_bytes, flags=flags | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as cause:
        raise ConfigError(f"{key}: this machine cannot give {num_bytes} bytes of memory") from cause
