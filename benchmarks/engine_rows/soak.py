"""What 20,000 requests leave behind: resident memory after all of them, less that after the first tenth."""

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from twostep.benchmarks.cluster.client import Client
from twostep.benchmarks.cluster.running import running_cluster
from twostep.benchmarks.cpu_rows.one_engine import OneEngine
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured

ALONE = "memory grown by 20,000 requests: an engine with SmolLM2"
PAIR = "memory grown by 20,000 requests: router, P or D, fake model"
SETTINGS = ("model=fake:vocab_size=128", "engine.kv_bytes=4000000", "decode.landing_bytes=2000000")
AT_ONCE = 16
PROMPT_TOKENS = 2
"""What leaks does so by requests, not by tokens: short ones are soon through."""
LOOKS = 10
"""How often memory is looked at; it counts from the first look on."""


async def measure_alone(effort: Effort) -> Outcomes:
    engine, num_requests, grown = OneEngine(), effort.pick(20_000, 2_000), Growth([os.getpid()])
    for _ in range(LOOKS):
        for _ in range(num_requests // LOOKS // AT_ONCE):
            engine.generate_s(engine.prompts(AT_ONCE, PROMPT_TOKENS), 2)
        grown.look()
    return {ALONE: grown.outcome(lambda _: "the process")}


async def measure_pair(effort: Effort) -> Outcomes:
    num_requests = effort.pick(20_000, 2_000)
    async with running_cluster(*SETTINGS) as cluster:
        pids = cluster.watch.pids()
        grown, prompts, numbers = Growth(list(pids.values())), Prompts(14), count(1)
        for look in range(1, LOOKS + 1):
            last = num_requests * look // LOOKS
            await asyncio.gather(*(_ask_up_to(cluster.client, prompts, numbers, last) for _ in range(AT_ONCE)))
            grown.look()
    return {PAIR: grown.outcome(list(pids).__getitem__)}


async def _ask_up_to(client: Client, prompts: Prompts, numbers: "count[int]", last: int) -> None:
    """Ask until request number `last` has been asked by this or another of those who ask."""
    while next(numbers) <= last:
        answer = await client.ask(prompts.draw(40), 4)
        if answer.error:
            raise ConnectionError(answer.error)


class Growth:
    """Looks at the resident memory of processes again and again."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._seen_mb: list[list[float]] = [[] for _ in pids]

    def look(self) -> None:
        for pid, seen in zip(self._pids, self._seen_mb, strict=True):
            seen.append(_resident_mb(pid))

    def outcome(self, name: Callable[[int], str]) -> Measured:
        """Return the growth of the process that grew most, and what was seen of each."""
        told = (f"{name(i)} {', '.join(f'{one:.0f}' for one in seen)}" for i, seen in enumerate(self._seen_mb))
        return Measured((max(seen[-1] - seen[0] for seen in self._seen_mb),), note=f"MB at each look: {'; '.join(told)}")


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


SOAKS = [Measurement((ALONE,), measure_alone), Measurement((PAIR,), measure_pair)]
