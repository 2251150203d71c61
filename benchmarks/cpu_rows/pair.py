"""A prefill and a decode node of one core each, asked over HTTP: one request at a time, and sixteen at once."""

import asyncio
import time
from collections.abc import Sequence
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
AT_ONCE, WARM_UP = 16, 2


async def measure_alone(effort: Effort) -> Outcomes:
    prompts, num_requests = Prompts(11), effort.pick(5, 2)

    async def side(client: Client) -> tuple[float, float]:
        """Return the median TTFT and TPOT, in milliseconds."""
        answers = [_sound(await client.ask(prompts.draw(512), 32)) for _ in range(num_requests)]
        tpots_s = [(one.total_s - one.ttft_s) / (32 - 1) for one in answers]
        return 1e3 * median(one.ttft_s for one in answers), 1e3 * median(tpots_s)

    async with running_cluster("model=smollm2") as ours, vllm_pair() as theirs:
        sides = [client for client in (ours.client, theirs) if client]
        rounds = [[await side(client) for client in sides] for _ in range(1 + effort.rounds)][1:]
    return {row: _measured(rounds, figure) for figure, row in enumerate((TTFT, TPOT))}


async def measure_output(effort: Effort) -> Outcomes:
    prompts = Prompts(12)

    async def side(client: Client) -> float:
        """Return how many tokens came in a second."""
        started = time.monotonic()
        for answer in await asyncio.gather(*(client.ask(prompts.draw(256), 128) for _ in range(AT_ONCE))):
            _sound(answer)
        return AT_ONCE * 128 / (time.monotonic() - started)

    async with running_cluster("model=smollm2") as ours, vllm_pair() as theirs:
        sides = [client for client in (ours.client, theirs) if client]
        rounds = [[(await side(client),) for client in sides] for _ in range(1 + effort.rounds)][1:]
    return {OUTPUT: _measured(rounds, 0)}


def _measured(rounds: Sequence[Sequence[tuple[float, ...]]], figure: int) -> Measured:
    """Return one figure of each round, for each side that there was."""
    ours, *peers = [tuple(side[figure] for side in sides) for sides in zip(*rounds, strict=True)]
    return Measured(ours, peers[0] if peers else ())


def _sound(answer: Answer) -> Answer:
    """Raises ConnectionError for an answer that is none: its time says nothing."""
    if answer.error:
        raise ConnectionError(answer.error)
    return answer


PAIR_ROWS = [Measurement((TTFT, TPOT), measure_alone), Measurement((OUTPUT,), measure_output)]
