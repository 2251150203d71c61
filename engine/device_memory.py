"""Memory beside a pool on a device: what others write into, and pinned slots out of which a transport sends."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from twostep.core.errors import ConfigError
from twostep.core.kv_memory import Units
from twostep.core.memory import MemoryRegion


class TensorMemory:
    """Implements `OpenMemory` with the bytes of a tensor."""

    def __init__(self, memory: Tensor) -> None:
        self._bytes = memory

    def region(self) -> MemoryRegion:
        return region_of(self._bytes)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return what lies there. Raises ValueError when that is outside."""
        self.region().slice(offset, num_bytes)
        return self._bytes[offset : offset + num_bytes].cpu().numpy().tobytes()


def device_memory(num_bytes: int, device: torch.device) -> TensorMemory:
    """Return zeroed memory of the device. Raises ConfigError when it cannot be had."""
    memory = _zeros(num_bytes, device)
    if memory.is_cuda:
        # Whoever writes there does not wait for the device's order: the zeros might come after what they wrote.
        torch.cuda.current_stream(device).synchronize()
    return TensorMemory(memory)


def host_memory(num_bytes: int, reader: torch.device) -> TensorMemory:
    """Return zeroed memory of the host that the device `reader` can read. Raises ConfigError when it cannot be had."""
    return TensorMemory(_zeros(num_bytes, torch.device("cpu"), pin_memory=reader.type == "cuda"))


def _zeros(num_bytes: int, place: torch.device, *, pin_memory: bool = False) -> Tensor:
    with _given(f"landing_bytes: {place} cannot give {num_bytes} bytes of memory"):
        return torch.zeros(num_bytes, dtype=torch.uint8, device=place, pin_memory=pin_memory)


class PinnedStaging:
    """Implements `Staging` for the pool `words`. Copies run on a stream of their own, beside the model's steps.

    Raises ConfigError when the memory cannot be had.
    """

    def __init__(self, words: Tensor, unit_bytes: int, num_slots: int) -> None:
        self.num_slots = num_slots
        self._units = words.view(-1, unit_bytes // words.itemsize)
        with _given(f"the host cannot pin {num_slots * unit_bytes} bytes of memory to stage KV in: raise `ulimit -l`"):
            self._slots = torch.zeros((num_slots, self._units.shape[1]), dtype=words.dtype, pin_memory=words.is_cuda)
        self._stream = torch.cuda.Stream(words.device) if words.is_cuda else None  # type: ignore[no-untyped-call]

    def region(self) -> MemoryRegion:
        return region_of(self._slots)

    def copy(self, units: Units, first_slot: int) -> "StagedCopy":
        index = torch.from_numpy(units.astype(np.int64))
        slots = self._slots[first_slot : first_slot + len(units)]
        # Out of pageable memory the copy of the index would wait for all earlier copies.
        index = index.pin_memory() if self._units.is_cuda else index
        with torch.cuda.stream(self._stream):
            gathered = self._units.index_select(0, index.to(self._units.device, non_blocking=True))
            slots.copy_(gathered, non_blocking=True)
            return StagedCopy(gathered, self._stream)


class StagedCopy:
    """Implements `Staged`. Holds what is copied from until it is."""

    def __init__(self, gathered: Tensor, stream: torch.cuda.Stream | None) -> None:
        self._gathered = gathered
        self._done = stream.record_event() if stream else None

    def is_done(self) -> bool:
        return self._done is None or self._done.query()


@contextmanager
def _given(complaint: str) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as cause:
        raise ConfigError(complaint) from cause


def region_of(memory: Tensor) -> MemoryRegion:
    """Return where a tensor lies, on the host or on a device."""
    where, size = memory.data_ptr(), memory.nbytes
    return MemoryRegion(where, size, "VRAM", memory.device.index or 0) if memory.is_cuda else MemoryRegion(where, size)
