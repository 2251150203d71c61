"""Ten long prompts are given up before their first token; a short one that comes then must not wait for them."""

import asyncio
import time
from statistics import median

from twostep.benchmarks.cluster.client import Answer
from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.cluster.timings import Step
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured

LATE = "short request after ten cancelled 4k prompts"
MODEL = "fake:vocab_size=128,token_s=0.0004"
"""A chunk of 512 tokens takes 205 ms."""
SETTINGS = (f"model={MODEL}", "engine.kv_bytes=100000000")
NUM_CANCELLED, LONG_TOKENS, SHORT_TOKENS = 10, 4096, 64
LOOK_S = 0.005


async def measure(effort: Effort) -> Outcomes:
    async with running_cluster(*SETTINGS) as cluster:
        prompts = Prompts()
        alone = [await _ttft_s(cluster, prompts) for _ in range(3 + effort.rounds)][3:]
        late = [await _ttft_after_storm_s(cluster, prompts) for _ in range(effort.rounds)]
        steps = [note for note in cluster.notes("prefill-0") if isinstance(note, Step)]
        chunk_s = max(step.span.length_s for step in steps)
    return {LATE: Measured(tuple((one - median(alone)) / chunk_s for one in late))}


async def _ttft_after_storm_s(cluster: RunningCluster, prompts: Prompts) -> float:
    """Return the TTFT of a short request sent as ten long ones, of which the first is being computed, are given up."""
    cluster.notes("prefill-0")
    storm = [asyncio.create_task(_ask(cluster, prompts.draw(LONG_TOKENS))) for _ in range(NUM_CANCELLED)]
    while not cluster.notes("prefill-0"):  # noqa: ASYNC110 - notes are a file
        await asyncio.sleep(LOOK_S)
    for one in storm:
        one.cancel()
    await asyncio.wait(storm)
    return await _ttft_s(cluster, prompts)


async def _ttft_s(cluster: RunningCluster, prompts: Prompts) -> float:
    return (await _ask(cluster, prompts.draw(SHORT_TOKENS))).ttft_s


async def _ask(cluster: RunningCluster, prompt: list[int]) -> Answer:
    answer = Answer(time.monotonic())
    async for _ in cluster.client.stream(prompt, 2, answer):
        pass
    if answer.error:
        raise OSError(answer.error)
    return answer


CANCEL_STORM = Measurement((LATE,), measure)
