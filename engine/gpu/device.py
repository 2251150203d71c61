"""The seam between the engine and a device that computes beside the host: order of work, graphs, copies, memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from twostep.engine.kernels.kernel_set import KernelSet


class Mark(Protocol):
    """A place in the device's work."""

    def wait(self) -> None:
        """Return when the device has come to here; other threads run meanwhile."""

    def seconds_since(self, earlier: "Mark") -> float:
        """Return what passed on the device between two marks that it has come to."""


class Fetched(Protocol):
    """Numbers on their way to the host."""

    def wait(self) -> Tensor:
        """Return them in host memory when they are there; other threads run meanwhile."""


class Graph(Protocol):
    """Work that was captured: the same operations on the same memory, whatever lies in that by then."""

    def replay(self) -> None: ...


class Device(Protocol):
    """Computes what is launched within `working`, in the order of launches, while the host goes on. Of one thread at a time."""

    @property
    def place(self) -> torch.device: ...

    @property
    def name(self) -> str:
        """Return what it is called, without telling which one of many."""

    @property
    def kernels(self) -> KernelSet: ...

    def working(self) -> AbstractContextManager[None]:
        """Launch everything inside in one order, after all that was launched so before."""

    def mark(self) -> Mark:
        """Return the end of what has been launched so far."""

    def send(self, numbers: Tensor) -> Tensor:
        """Return a copy of host numbers on the device, as work in its order. They may be changed at once."""

    def fill(self, target: Tensor, numbers: Tensor) -> None:
        """The same, into memory that is on the device already."""

    def fetch(self, numbers: Tensor) -> Fetched:
        """Begin to copy numbers that launched work makes to the host, beside work that is launched later.

        That work must not change them.
        """

    def capture(self, work: Callable[[], None]) -> Graph:
        """Return the work as a graph; it must have run once before, and must not wait for the device. Graphs share memory:
        what one leaves there the next one overwrites."""

    def finish(self) -> None:
        """Wait for everything that was launched."""

    def free_bytes(self) -> int:
        """Return how much memory nobody has, after giving back what is only kept for later."""

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Return how much more memory than now the work takes at once, run here and now."""
