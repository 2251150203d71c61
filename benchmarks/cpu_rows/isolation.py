"""What 16 running streams of a pair feel of 2k prompts that keep arriving: P and D on one core each, all else on P's."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

from twostep.benchmarks.cluster.client import Answer, Client
from twostep.benchmarks.cluster.cores import keep_to
from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.cpu_rows.mixed_load import NUM_STREAMS, PROMPT_TOKENS, STREAM_TOKENS
from twostep.benchmarks.cpu_rows.one_engine import OneEngine
from twostep.benchmarks.cpu_rows.vllm_peer import vllm_peer
from twostep.benchmarks.engine_rows.mixed import load
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured

STEADY = "ITL p99 / p50 of running streams while 2k prompts arrive"
LATE = "ITL p99 of running streams while 2k prompts arrive"
VLLM_BUDGET = 128
"""Of those tried, the one with which vLLM's streams wait least: `benchmarks/engine.py` has the others."""
AT_ONCE = 2
"""Prompts in flight: the prefill node is never without one."""
ALONE_S = 10.0
"""For how long the streams are watched before prompts arrive: how even their steps are on this machine anyway."""
LONGEST = 2000
LOOK_S = 0.1


async def measure(effort: Effort) -> Outcomes:
    ours = await _pair_itl_s(effort)
    theirs = await _vllm_itl_s(effort)
    alone, beside = zip(*ours, strict=True)
    return {STEADY: Measured(_unevenness(beside), _unevenness(alone)), LATE: Measured(_p99_ms(beside), _p99_ms(theirs))}


def _unevenness(rounds: Sequence[list[float]]) -> tuple[float, ...]:
    return tuple(percentile(one, 99) / percentile(one, 50) for one in rounds)


def _p99_ms(rounds: Sequence[list[float]]) -> tuple[float, ...]:
    return tuple(1e3 * percentile(one, 99) for one in rounds)


async def _vllm_itl_s(effort: Effort) -> list[list[float]]:
    """Return the times between tokens of each round of one vLLM on both cores; nothing without vLLM."""
    engine = OneEngine()
    async with vllm_peer(VLLM_BUDGET) as peer:
        return [(await peer.mixed(load(engine, effort))).itl_s for _ in range(1 + effort.rounds)][1:] if peer else []


async def _pair_itl_s(effort: Effort) -> list[tuple[list[float], list[float]]]:
    """Return the times between tokens of each round of a pair: of streams alone, then while prompts arrive."""
    prompts, cores = Prompts(13), sorted(os.sched_getaffinity(0))
    async with running_cluster("model=smollm2") as cluster:
        _move_aside(cluster, cores[0])
        try:
            return [await _round_itl_s(cluster.client, prompts, effort.pick(8, 3)) for _ in range(1 + effort.rounds)][1:]
        finally:
            os.sched_setaffinity(0, cores)


def _move_aside(cluster: RunningCluster, core: int) -> None:
    """Leave the decode node's core to it alone."""
    for process in (os.getpid(), cluster.watch.pids()["router"]):
        keep_to(core, process)


async def _round_itl_s(client: Client, prompts: Prompts, num_prompts: int) -> tuple[list[float], list[float]]:
    async with _running_streams(client, prompts) as streams:
        alone = await _itl_s(streams, asyncio.sleep(ALONE_S))
        waiting = [prompts.draw(PROMPT_TOKENS) for _ in range(num_prompts)]
        return alone, await _itl_s(streams, asyncio.gather(*(_ask_each(client, waiting) for _ in range(AT_ONCE))))


async def _itl_s(streams: list[Answer], meanwhile: Awaitable[object]) -> list[float]:
    since = [len(stream.moments) for stream in streams]
    await meanwhile
    moments = [stream.moments[first:] for stream, first in zip(streams, since, strict=True)]
    return [after - before for one in moments for before, after in pairwise(one)]


async def _ask_each(client: Client, waiting: list[list[int]]) -> None:
    while waiting:
        answer = await client.ask(waiting.pop(), 2)
        if answer.error:
            raise ConnectionError(answer.error)


@asynccontextmanager
async def _running_streams(client: Client, prompts: Prompts) -> AsyncIterator[list[Answer]]:
    """Run the streams; each has had tokens already. Raises ConnectionError when one ends in between."""
    streams = [Answer(sent=0.0) for _ in range(NUM_STREAMS)]
    readers = [asyncio.ensure_future(_read(client, prompts.draw(STREAM_TOKENS), stream)) for stream in streams]
    try:
        while not all(stream.moments for stream in streams):  # noqa: ASYNC110 - texts come one by one
            await asyncio.sleep(LOOK_S)
        yield streams
        if ended := [stream for stream in streams if stream.is_over or stream.error]:
            raise ConnectionError(f"{len(ended)} streams have ended: {ended[0].error or 'too early'}")
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(client: Client, prompt: list[int], answer: Answer) -> None:
    async for _ in client.stream(prompt, LONGEST, answer):
        pass


ISOLATION = Measurement((STEADY, LATE), measure)
