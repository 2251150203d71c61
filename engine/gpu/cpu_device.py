"""A `Device` without a GPU, as unforgiving as one: for tests, and to try on a CPU what is to run on a GPU.

A graph is a tape of operations on certain memory: what a buffer held, or which Python ran, when it was recorded is forgotten.
Copies to the host are made when somebody waits for them, as late as can be: what is overwritten before shows. Time passes with
each mark.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from twostep.engine.gpu.device import Mark
from twostep.engine.kernels.kernel_set import KernelSet

WAITS_FOR_THE_DEVICE = frozenset({"aten._local_scalar_dense.default", "aten.nonzero.default"})
"""What has to know numbers on the host: a GPU refuses to capture it."""
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


@dataclass(frozen=True, slots=True)
class CpuMark:
    """Implements `Mark`."""

    at: int

    def wait(self) -> None:
        """All has run already."""

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, CpuMark)
        return 1e-6 * (self.at - earlier.at)


class CpuFetched:
    """Implements `Fetched`."""

    def __init__(self, source: Tensor) -> None:
        self._source = source

    def wait(self) -> Tensor:
        return self._source.clone()


class CpuDevice:
    """Implements `Device`. `memory_bytes` is what it says it has, `workspace_bytes` what any work is said to take."""

    def __init__(self, kernels: KernelSet, *, memory_bytes: int = 1 << 30, workspace_bytes: int = 1 << 20) -> None:
        self.place = torch.device("cpu")
        self.name = "no GPU"
        self.kernels = cast(KernelSet, _TapedKernels(kernels, self))
        self.tape: Tape | None = None
        self._memory_bytes, self._workspace_bytes = memory_bytes, workspace_bytes
        self._marks = count()

    @contextmanager
    def working(self) -> Iterator[None]:
        yield

    def mark(self) -> CpuMark:
        return CpuMark(next(self._marks))

    def send(self, numbers: Tensor) -> Tensor:
        return numbers.clone()

    def fill(self, target: Tensor, numbers: Tensor) -> None:
        target.copy_(numbers)

    def fetch(self, numbers: Tensor) -> CpuFetched:
        return CpuFetched(numbers)

    def capture(self, work: Callable[[], None]) -> "Tape":
        self.tape = tape = Tape()
        try:
            with tape:
                work()
        finally:
            self.tape = None
        return tape

    def finish(self) -> None:
        """All has run already."""

    def free_bytes(self) -> int:
        return self._memory_bytes

    def peak_bytes(self, work: Callable[[], None]) -> int:
        work()
        return self._workspace_bytes


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Implements `Graph`: records operations as they run, and runs them again on the very same tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in WAITS_FOR_THE_DEVICE:
            raise RuntimeError(f"{func} waits for the device: it cannot be captured")
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made

    def note(self, func: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call that makes nothing but changes in its arguments."""
        self.calls.append((func, args, kwargs, None))

    def replay(self) -> None:
        for func, args, kwargs, recorded in self.calls:
            made = func(*args, **kwargs)
            if isinstance(made, Tensor) and made.data_ptr() != recorded.data_ptr():
                recorded.copy_(made)


class _TapedKernels:
    """Kernels whose calls are recorded whole: what a kernel is made of here is not what a GPU would run."""

    def __init__(self, kernels: KernelSet, device: CpuDevice) -> None:
        self._kernels = kernels
        self._device = device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                made = kernel(*args, **kwargs)
            if self._device.tape:
                self._device.tape.note(kernel, args, kwargs)
            return made

        return call
