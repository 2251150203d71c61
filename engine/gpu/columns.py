"""Columns of numbers in one piece of memory: one copy brings all of them to the device."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED_BYTES = 16
"""Kernels read vectors of this size."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Where each column lies: its type and how many numbers it has."""

    columns: Mapping[str, tuple[torch.dtype, int]]

    def new(self, place: torch.device | None = None) -> Tensor:
        """Return memory for them, zeroed."""
        return torch.zeros(sum(map(self._bytes, self.columns)), dtype=torch.uint8, device=place)

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """Return the columns that lie in `memory`, which they share."""
        views, start = {}, 0
        for name, (dtype, num) in self.columns.items():
            views[name] = memory[start : start + num * dtype.itemsize].view(dtype)
            start += self._bytes(name)
        return views

    def _bytes(self, name: str) -> int:
        dtype, num = self.columns[name]
        return -(-num * dtype.itemsize // ALIGNED_BYTES) * ALIGNED_BYTES
