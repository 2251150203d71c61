"""A prefill and a decode node of one core each, asked over HTTP: one request at a time, and sixteen at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from statistics import median

from twostep.benchmarks.cluster.client import Answer, Client
from twostep.benchmarks.cluster.running import running_cluster
from twostep.benchmarks.cpu_rows.vllm_servers import vllm_pair
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured

ALONE = "1P1D, 512 in, 32 out, one at a time: "
TTFT, TPOT = f"{ALONE}TTFT", f"{ALONE}TPOT"
OUTPUT = "1P1D, 256 in, 128 out, 16 at a time: output"
AT_ONCE = 16
Side = Callable[[Client, Prompts], Awaitable[tuple[float, ...]]]


async def measure(effort: Effort) -> Outcomes:
    async with running_cluster("model=smollm2") as ours, vllm_pair() as theirs:

        async def in_turn(side: Side) -> Sequence[Sequence[tuple[float, ...]]]:
            """Return each round's figures, for each side; the round that warms up is left out."""
            prompts, rounds = Prompts(11), []
            for _ in range(1 + effort.rounds):
                with theirs.frozen() if theirs else nullcontext():
                    sides = [await side(ours.client, prompts)]
                rounds.append([*sides, await side(theirs.client, prompts)] if theirs else sides)
            return rounds[1:]

        alone = await in_turn(lambda client, prompts: _one_at_a_time(client, prompts, effort.pick(5, 2)))
        together = await in_turn(_together)
    return {TTFT: _measured(alone, 0), TPOT: _measured(alone, 1), OUTPUT: _measured(together, 0)}


async def _one_at_a_time(client: Client, prompts: Prompts, num_requests: int) -> tuple[float, float]:
    """Return the median TTFT and TPOT, in milliseconds."""
    answers = [_sound(await client.ask(prompts.draw(512), 32)) for _ in range(num_requests)]
    tpots_s = [(one.total_s - one.ttft_s) / (32 - 1) for one in answers]
    return 1e3 * median(one.ttft_s for one in answers), 1e3 * median(tpots_s)


async def _together(client: Client, prompts: Prompts) -> tuple[float]:
    """Return how many tokens came in a second."""
    started = time.monotonic()
    for answer in await asyncio.gather(*(client.ask(prompts.draw(256), 128) for _ in range(AT_ONCE))):
        _sound(answer)
    return (AT_ONCE * 128 / (time.monotonic() - started),)


def _measured(rounds: Sequence[Sequence[tuple[float, ...]]], figure: int) -> Measured:
    """Return one figure of each round, for each side that there was."""
    ours, *peers = [tuple(side[figure] for side in sides) for sides in zip(*rounds, strict=True)]
    return Measured(ours, peers[0] if peers else ())


def _sound(answer: Answer) -> Answer:
    """Raises ConnectionError for an answer that is none: its time says nothing."""
    if answer.error:
        raise ConnectionError(answer.error)
    return answer


PAIR = Measurement((TTFT, TPOT, OUTPUT), measure)
