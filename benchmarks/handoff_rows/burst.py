"""A burst of eight times what the decode node's window takes: nobody fails, and hardly any time is lost."""

import asyncio
import time
from itertools import pairwise
from statistics import median

from twostep.benchmarks.cluster.client import Answer
from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured

FAILED = "burst of 32 into a window of 4, failed"
TIME = "burst of 32 into a window of 4, time"
MODEL = "fake:vocab_size=128,step_s=0.01"
WINDOW, BURST = 4, 32
SETTINGS = (f"model={MODEL}", "engine.kv_bytes=100000000", f"decode.engine.max_batch={WINDOW}")
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 64


async def measure(effort: Effort) -> Outcomes:
    async with running_cluster(*SETTINGS) as cluster:
        prompts = Prompts()
        await _ask_at_once(cluster, prompts, WINDOW)
        rounds = [await _round(cluster, prompts) for _ in range(effort.rounds)]
    ours, ideal, failed = zip(*rounds, strict=True)
    note = (
        f"ideal: one TTFT, then {BURST // WINDOW} times {OUTPUT_TOKENS - 1} steps of {WINDOW}, both as measured without a burst"
    )
    return {
        FAILED: Measured(failed, num_failed=int(sum(failed))),
        TIME: Measured(ours, ideal, num_failed=int(sum(failed)), note=note),
    }


async def _round(cluster: RunningCluster, prompts: Prompts) -> tuple[float, float, float]:
    """Return what a burst took, what it would ideally take, and how many of it failed."""
    calm, _ = await _ask_at_once(cluster, prompts, WINDOW)
    burst, took_s = await _ask_at_once(cluster, prompts, BURST)
    step_s = median(after - before for answer in calm for before, after in pairwise(answer.moments))
    ideal_s = min(answer.ttft_s for answer in calm) + BURST / WINDOW * (OUTPUT_TOKENS - 1) * step_s
    return took_s, ideal_s, float(sum(bool(answer.error) for answer in burst))


async def _ask_at_once(cluster: RunningCluster, prompts: Prompts, num_requests: int) -> tuple[list[Answer], float]:
    started = time.monotonic()
    asked = [cluster.client.ask(prompts.draw(PROMPT_TOKENS), OUTPUT_TOKENS) for _ in range(num_requests)]
    answers = await asyncio.gather(*asked)
    return answers, time.monotonic() - started


BURST_ROWS = Measurement((FAILED, TIME), measure)
