"""From the start of a process to its first token, with weights in the page cache and kernels compiled before."""

import sys
import time
from asyncio.subprocess import create_subprocess_exec

from twostep.benchmarks.cpu_rows.one_engine import OneEngine
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, repeat
from twostep.benchmarks.harness.rows import Measured

START_ROW = "start to first token, weights in page cache"


async def measure(effort: Effort) -> Outcomes:
    measured = await repeat(_start, effort.rounds)
    return {START_ROW: Measured(measured.ours, note="an engine alone; kernels were compiled before, which takes seconds once")}


async def _start() -> float:
    started = time.monotonic()
    process = await create_subprocess_exec(sys.executable, "-m", __name__)
    if await process.wait():
        raise ConnectionError("the engine did not come to its first token")
    return time.monotonic() - started


START = Measurement((START_ROW,), measure)

if __name__ == "__main__":
    engine = OneEngine()
    engine.generate_s(engine.prompts(1, 32), 1)
