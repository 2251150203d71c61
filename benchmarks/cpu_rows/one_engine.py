"""SmolLM2 in bfloat16 in this process: how long its steps take, and how fast this machine could be at most."""

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from twostep.benchmarks.cpu_rows.mixed_load import (
    CALM_STEPS,
    LONGEST,
    LONGEST_DECODED,
    NUM_STEPS,
    Latencies,
    MixedLoad,
    times_between,
)
from twostep.cli.model_store.catalogue import find_model
from twostep.core.ids import Attempt, RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules, TokenEvent
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.runners import build_runner

NUM_THREADS = len(os.sched_getaffinity(0))
NO_WISHES = ServiceLevel()
STREAM_BYTES = 256 << 20
GEMM_SHAPE = 512, 576, 3072
"""A prefill of 512 tokens through SmolLM2's widest layer."""


class OneEngine:
    def __init__(self, **knobs: Any) -> None:
        config = EngineConfig(kv_bytes=1 << 30, num_threads=NUM_THREADS, **knobs)
        self._engine = Engine(build_runner(find_model("smollm2"), config), config, clock=time.perf_counter)
        self._names = itertools.count()
        self._draw = Random(0)

    def prompts(self, count: int, num_tokens: int) -> list[list[int]]:
        """Return random prompts: no prefix of them was ever seen."""
        return [self._draw.choices(range(17, 49152), k=num_tokens) for _ in range(count)]

    def decode_step_s(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return how long a step takes in which each of `prompts` gets a token, once all have had one; the mean of several."""
        moments: defaultdict[RequestId, list[float]] = defaultdict(list)
        requests = [self.put(prompt, LONGEST_DECODED) for prompt in prompts]
        while not all(moments[request] for request in requests):
            self._step(moments)
        started = time.perf_counter()
        for _ in range(NUM_STEPS):
            self.step()
        took_s = time.perf_counter() - started
        for request in requests:
            self.leave(request)
        return took_s / NUM_STEPS

    def generate_s(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Return how long it takes to generate `num_tokens` for each of `prompts`, scheduling and drawing included."""
        requests = [self.put(prompt, num_tokens) for prompt in prompts]
        started = time.perf_counter()
        for _ in iter(self._engine.step, None):
            pass
        took_s = time.perf_counter() - started
        for request in requests:
            self._engine.release(request)
        return took_s

    def mixed(self, load: MixedLoad) -> Latencies:
        """Let the streams run, and put the prompts to the engine one after the other."""
        moments: defaultdict[RequestId, list[float]] = defaultdict(list)
        streams = [self.put(prompt, LONGEST) for prompt in load.streams]
        while not all(moments[stream] for stream in streams):
            self._step(moments)
        started, ttft_s = time.perf_counter(), []
        for prompt in load.prompts:
            for _ in range(CALM_STEPS):
                self._step(moments)
            ttft_s.append(self._answer_s(prompt, moments))
        for stream in streams:
            self._engine.release(stream)
        return Latencies([one for stream in streams for one in times_between(moments[stream], started)], ttft_s)

    def _answer_s(self, prompt: Sequence[int], moments: defaultdict[RequestId, list[float]]) -> float:
        """Step until the prompt has its first token; return how long it took."""
        sent, request = time.perf_counter(), self.put(prompt, 1)
        while not moments[request]:
            self._step(moments)
        self._engine.release(request)
        return moments[request][0] - sent

    def _step(self, moments: defaultdict[RequestId, list[float]]) -> None:
        """Step and note when each request's token came."""
        events = self.step()
        now = time.perf_counter()
        for event in events:
            moments[event.request].append(now)

    def step(self) -> tuple[TokenEvent, ...]:
        """Return what one step of the engine, which must have work, has drawn."""
        result = self._engine.step()
        assert result is not None
        return result.events

    def leave(self, request: RequestId) -> None:
        """Let a request go, be it answered or not."""
        self._engine.release(request)

    def put(self, prompt: Sequence[int], num_tokens: int, level: ServiceLevel = NO_WISHES) -> RequestId:
        """Put a request that gets exactly `num_tokens` tokens to the engine; return its name."""
        name = RequestId(str(next(self._names)))
        rules = StopRules(num_tokens, ignore_eos=True)
        request = Request(name, tuple(prompt), SamplingParams(0, temperature=0.0), rules, level=level)
        self._engine.reserve(request, growth_tokens=num_tokens)
        self._engine.start(name, attempt=Attempt(1))
        return name


def read_bytes_per_s() -> float:
    """Return how fast as many threads as the engine's read memory."""
    numbers = torch.ones(STREAM_BYTES // 4)
    return numbers.nbytes / _shortest_s(numbers.sum)


def gemm_flops() -> float:
    """Return how fast as many threads as the engine's multiply matrices of bfloat16."""
    rows, inner, columns = GEMM_SHAPE
    left, right = torch.randn(rows, inner).bfloat16(), torch.randn(inner, columns).bfloat16()
    return 2 * rows * inner * columns / _shortest_s(lambda: left @ right)


def _shortest_s(work: Callable[[], object], tries: int = 15) -> float:
    """Return the least of several durations. The engine's process keeps torch to one thread: here it may have all."""
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    durations = []
    for _ in range(tries):
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    torch.set_num_threads(before)
    return min(durations)
