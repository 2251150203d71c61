"""What a router of two processes serves, beside one of one process: tokens a second, and the CPU that a request takes."""

import time
from contextlib import AsyncExitStack

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.stand import Server, send, standing

TOKENS_PER_S = "output with two workers, 64 streams"
CPU = "CPU per request with two workers"
PROMPT_CHARACTERS = 1000
MAX_TOKENS = 100


async def measure(effort: Effort) -> Outcomes:
    """Ask both in turn: as many requests at once as keep one process busy."""
    count = effort.pick(512, 192)
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    num_failed = 0
    async with AsyncExitStack() as stack:
        stands = {num: await stack.enter_async_context(standing(with_peers=False, workers=num)) for num in found}
        for number in range(effort.rounds + 1):
            for num, stand in stands.items():
                tokens_per_s, cpu_ms, failed = await _ask(stand.ours, count, number)
                num_failed += failed
                if number:
                    found[num].append((tokens_per_s, cpu_ms))
    rates, cpu = ({num: tuple(one[place] for one in rounds) for num, rounds in found.items()} for place in (0, 1))
    return {TOKENS_PER_S: Measured(rates[2], rates[1], num_failed), CPU: Measured(cpu[2], cpu[1], num_failed)}


async def _ask(server: Server, count: int, seed: int) -> tuple[float, float, int]:
    """Return tokens a second, milliseconds of CPU for each request, and how many have failed."""
    texts = (prompts.text(PROMPT_CHARACTERS, 10_000 * seed + number) for number in range(count))
    bodies = [prompts.chat(server.model, text, MAX_TOKENS) for text in texts]
    began, before_s = time.perf_counter(), server.cpu_s()
    result = await send(server, bodies, at_once=64)
    took_s = time.perf_counter() - began
    return count * MAX_TOKENS / took_s, (server.cpu_s() - before_s) * 1000 / count, result.num_failed


WORKERS = Measurement((TOKENS_PER_S, CPU), measure)
