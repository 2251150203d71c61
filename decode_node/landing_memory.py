"""The host memory that prefill nodes write into: the only memory of a decode node that anybody else may touch."""

import numpy as np

from twostep.core.memory import MemoryRegion, touched_host_pages


class LandingMemory:
    """Page-aligned and zeroed. Must outlive every transport that it is registered with."""

    def __init__(self, num_bytes: int) -> None:
        self.bytes = np.frombuffer(touched_host_pages(num_bytes, "landing_bytes"), dtype=np.uint8)

    def region(self) -> MemoryRegion:
        return MemoryRegion(self.bytes.ctypes.data, self.bytes.nbytes)
