"""What many long requests leave behind in the router's memory, once its bounded tables are full.

`TWOSTEP_SOAK_REQUESTS` asks for another number of requests: 200,000 take about an hour.
"""

import asyncio
import os

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.stand import Server, send, standing
from twostep.router.requests.history import MAX_STORIES
from twostep.router.text.piecewise import MAX_BYTES

GROWN = "memory grown by 1M long requests"
VARIABLE = "TWOSTEP_SOAK_REQUESTS"
PROMPT_CHARACTERS = 20_000
NUM_REQUESTS = 3000
NUM_LOOKS = 10
PREFIX_MEMORY_S = 10.0
"""The mock nodes do not tell what they hold. For so long a prompt is taken to be there: what is known of them is soon full."""
MOST_AT_ONCE = 1000
"""So many bodies are made before they are sent."""
NUM_FIRST = max(MAX_STORIES, MAX_BYTES // (2 * PROMPT_CHARACTERS)) + 200
"""They fill the stories that are kept, and the tokens of pieces: a prompt takes about twice its characters there."""


async def measure(effort: Effort) -> Outcomes:
    count = int(os.environ.get(VARIABLE, effort.pick(NUM_REQUESTS, 500)))
    async with standing(with_peers=False, prefix_memory_s=PREFIX_MEMORY_S) as stand:
        num_failed = await _ask(stand.ours, range(NUM_FIRST))
        resident = [stand.ours.resident_bytes() / 1e6]
        for look in range(NUM_LOOKS):
            done = NUM_FIRST + count * look // NUM_LOOKS
            num_failed += await _ask(stand.ours, range(done, NUM_FIRST + count * (look + 1) // NUM_LOOKS))
            resident.append(stand.ours.resident_bytes() / 1e6)
    note = (
        f"{count} requests of 20 KB were sent, not a million; before them {NUM_FIRST} that filled what is bounded; "
        f"after each tenth: {', '.join(f'{one:.0f}' for one in resident)} MB"
    )
    return {GROWN: Measured((resident[-1] - resident[0],), (), num_failed, note)}


async def _ask(server: Server, numbers: range) -> int:
    """Send prompts by their numbers, the next ones made meanwhile; returns how many failed."""
    num_failed = 0
    batches = [*(numbers[start : start + MOST_AT_ONCE] for start in range(0, len(numbers), MOST_AT_ONCE)), range(0)]
    made = asyncio.create_task(asyncio.to_thread(_bodies, server.model, batches[0]))
    for following in batches[1:]:
        bodies, made = await made, asyncio.create_task(asyncio.to_thread(_bodies, server.model, following))
        num_failed += (await send(server, bodies, at_once=16)).num_failed
    await made
    return num_failed


def _bodies(model: str, numbers: range) -> list[str]:
    return [prompts.chat(model, prompts.text(PROMPT_CHARACTERS, number), 8) for number in numbers]


MEMORY = Measurement((GROWN,), measure)
