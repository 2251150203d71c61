"""An NVIDIA GPU: streams, events, CUDA graphs and pinned memory, as torch has them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from twostep.engine.gpu.device import Mark
from twostep.engine.kernels.gpu_presence import require_gpu, require_triton
from twostep.engine.kernels.kernel_set import KernelSet

MS = 1e-3


class CudaMark:
    """Implements `Mark`. Whoever waits sleeps: a thread that spins would take the core that control needs."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, CudaMark)
        return float(earlier.event.elapsed_time(self.event)) * MS


class CudaFetched:
    """Implements `Fetched`. Holds the source until it is copied: the allocator would lend its memory to later work."""

    def __init__(self, source: Tensor, work: torch.cuda.Stream, copies: torch.cuda.Stream) -> None:
        self._source = source
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        copies.wait_stream(work)
        with torch.cuda.stream(copies):
            self._host.copy_(source, non_blocking=True)
        self._done.record(copies)

    def wait(self) -> Tensor:
        self._done.synchronize()
        return self._host


class CudaDevice:
    """Implements `Device`. Raises ConfigError where there is no such GPU, or nothing to compile kernels with."""

    def __init__(self, index: int = 0) -> None:
        require_gpu(index)
        require_triton()
        # It compiles for a GPU, or interprets: either is decided when it is imported.
        from twostep.engine.kernels.gpu.kernel_set import TritonKernels

        self.place = torch.device("cuda", index)
        self.name: str = torch.cuda.get_device_name(self.place)
        self.kernels: KernelSet = TritonKernels()
        self._work = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.cuda.stream(self._work):
            yield

    def mark(self) -> CudaMark:
        return CudaMark(self._work)

    def send(self, numbers: Tensor) -> Tensor:
        # Pinned memory is lent again when the copy has been made, not before: the allocator sees to that.
        return numbers.pin_memory().to(self.place, non_blocking=True)

    def fill(self, target: Tensor, numbers: Tensor) -> None:
        target.copy_(numbers.pin_memory(), non_blocking=True)

    def fetch(self, numbers: Tensor) -> CudaFetched:
        return CudaFetched(numbers, self._work, self._copies)

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile; that is no business of this capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._work, capture_error_mode="thread_local"):
            work()
        return graph

    def finish(self) -> None:
        torch.cuda.synchronize(self.place)

    def free_bytes(self) -> int:
        self.finish()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.place)[0]

    def peak_bytes(self, work: Callable[[], None]) -> int:
        self.finish()
        before = torch.cuda.memory_allocated(self.place)
        torch.cuda.reset_peak_memory_stats(self.place)
        work()
        self.finish()
        return torch.cuda.max_memory_allocated(self.place) - before
