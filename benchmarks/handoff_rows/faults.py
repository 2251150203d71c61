"""What a client sees of a node that dies or stands still: how long its stream stalls, and that its answer is the same."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from twostep.benchmarks.cluster.client import Answer
from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.cluster.timings import Step
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured

PROGRESS_S = 5.0
SETTINGS = (
    "model=fake:vocab_size=128,step_s=0.01,token_s=0.0005",
    "engine.kv_bytes=100000000",
    "num_prefill=2",
    "num_decode=2",
    f"prefill.timers.progress_s={PROGRESS_S}",
    f"decode.timers.progress_s={PROGRESS_S}",
)
PROMPT_TOKENS, OUTPUT_TOKENS = 2048, 40
SOME_TOKENS = 10
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Fault:
    """`signal` to the node of `role` that works on the request."""

    row: str
    role: Literal["prefill", "decode"]
    signal: signal.Signals


FAULTS = (
    Fault("stream stalls, kill -9 of P in mid-prefill", "prefill", signal.SIGKILL),
    Fault("stream stalls, SIGSTOP of P in mid-prefill", "prefill", signal.SIGSTOP),
    Fault("stream stalls, kill -9 of D in mid-decode", "decode", signal.SIGKILL),
    Fault("stream stalls, SIGSTOP of D in mid-decode", "decode", signal.SIGSTOP),
)


async def measure(effort: Effort) -> Outcomes:
    rounds = effort.pick(3, 1)
    async with running_cluster(*SETTINGS) as calm:
        undisturbed = [await calm.client.ask(_prompt(seed), OUTPUT_TOKENS) for seed in range(rounds)]
    return {fault.row: await _suffer(fault, undisturbed) for fault in FAULTS}


async def _suffer(fault: Fault, undisturbed: Sequence[Answer]) -> Measured:
    """Return by how much longer the longest stall is; another answer than the undisturbed one is a failure."""
    answers = [await _struck(fault, _prompt(seed)) for seed in range(len(undisturbed))]
    pairs = list(zip(answers, undisturbed, strict=True))
    ends = sorted({answer.error or "same answer" for answer in answers})
    return Measured(
        tuple(max(0.0, answer.longest_stall_s() - calm.longest_stall_s()) / PROGRESS_S for answer, calm in pairs),
        num_failed=sum(not answer.error and answer.text != calm.text for answer, calm in pairs),
        note=f"progress deadline {PROGRESS_S:g} s; {'; '.join(ends)}",
    )


def _prompt(seed: int) -> list[int]:
    return Prompts(seed).draw(PROMPT_TOKENS)


async def _struck(fault: Fault, prompt: list[int]) -> Answer:
    """Return the answer to `prompt` in whose midst a node is struck."""
    async with running_cluster(*SETTINGS) as cluster, _all_gone_at_the_end(cluster):
        answer = Answer(time.monotonic())
        striking = asyncio.create_task(_strike(cluster, fault, answer))
        async for _ in cluster.client.stream(prompt, OUTPUT_TOKENS, answer):
            pass
        await striking
    return answer


async def _strike(cluster: RunningCluster, fault: Fault, answer: Answer) -> None:
    """Wait until the request is in the phase that is meant, and strike the node that works on it."""
    working: dict[str, bool] = {}
    while True:
        for name in (f"{fault.role}-{number}" for number in range(2)):
            working[name] = working.get(name, False) or any(isinstance(note, Step) for note in cluster.notes(name))
        struck = [name for name, is_working in working.items() if is_working]
        if struck and (fault.role == "prefill" or len(answer.moments) >= SOME_TOKENS):
            os.kill(cluster.watch.pids()[struck[0]], fault.signal)
            return
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _all_gone_at_the_end(cluster: RunningCluster) -> AsyncIterator[None]:
    """Kill what stands still: it would not hear that it is to stop."""
    pids = cluster.watch.pids()
    try:
        yield
    finally:
        for name, pid in pids.items():
            if name != "router":
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


STALLS = Measurement(tuple(fault.row for fault in FAULTS), measure)
