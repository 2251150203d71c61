"""Measures what this machine can do at most, in the same run as what is compared with it. The best of several tries."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from twostep.benchmarks.harness.rounds import Effort

STREAM_BYTES = 256 << 20
"""Far more than any cache holds."""
GEMM_SIZE = 1536


async def memory_peaks(effort: Effort) -> Mapping[str, float]:
    """Return how fast memory is read, and copied, by one thread and by all."""
    source = torch.ones(STREAM_BYTES // effort.pick(1, 4) // 4)
    target = torch.ones_like(source)
    peaks = {}
    for num_threads in _thread_counts():
        with _threads(num_threads):
            peaks[f"read GB/s, {num_threads} thread"] = source.nbytes / 1e9 / _shortest_s(source.sum)
            peaks[f"memcpy GB/s, {num_threads} thread"] = source.nbytes / 1e9 / _shortest_s(lambda: target.copy_(source))
    return peaks


def gemm_peaks() -> dict[str, float]:
    """Return how fast bfloat16 matrices are multiplied, by one thread and by all."""
    left = torch.randn(GEMM_SIZE, GEMM_SIZE).bfloat16()
    right = torch.randn(GEMM_SIZE, GEMM_SIZE).bfloat16()
    peaks = {}
    for num_threads in _thread_counts():
        with _threads(num_threads):
            peaks[f"bf16 GEMM TFLOP/s, {num_threads} thread"] = 2 * GEMM_SIZE**3 / 1e12 / _shortest_s(lambda: left @ right)
    return peaks


async def json_peaks(_: Effort) -> Mapping[str, float]:
    """Return how fast one thread reads JSON like that of the Kubernetes API."""
    text = json.dumps([{"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "zone": "a", "nodeName": "m"}] * 10_000)
    return {"JSON read MB/s, 1 thread": len(text) / 1e6 / _shortest_s(lambda: json.loads(text))}


def _thread_counts() -> list[int]:
    return sorted({1, torch.get_num_threads()})


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shortest_s(work: Callable[[], object], tries: int = 7) -> float:
    durations = []
    for _ in range(tries):
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    return min(durations)
