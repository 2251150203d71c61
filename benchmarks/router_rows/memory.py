"""What many long requests leave behind in the router's memory, once its bounded tables are full."""

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.stand import send, standing
from twostep.router.history import MAX_STORIES
from twostep.router.piecewise import MAX_BYTES

GROWN = "memory grown by 1M long requests"
PROMPT_CHARACTERS = 20_000
NUM_REQUESTS = 3000
NUM_FIRST = max(MAX_STORIES, MAX_BYTES // (2 * PROMPT_CHARACTERS)) + 200
"""They fill the stories that are kept, and the tokens of pieces: a prompt takes about twice its characters there."""


async def measure(effort: Effort) -> Outcomes:
    count = effort.pick(NUM_REQUESTS, 500)
    async with standing(with_peers=False) as stand:

        async def ask(num: int, seed: int) -> int:
            texts = (prompts.text(PROMPT_CHARACTERS, 100_000 * seed + number) for number in range(num))
            return (await send(stand.ours, [prompts.chat(stand.ours.model, text, 8) for text in texts], at_once=16)).num_failed

        num_failed = await ask(NUM_FIRST, 1)
        before = stand.ours.resident_bytes()
        num_failed += await ask(count, 2)
        grown = (stand.ours.resident_bytes() - before) / 1e6
    note = f"{count} requests of 20 KB were sent, not a million; before them {NUM_FIRST} that filled what is bounded"
    return {GROWN: Measured((grown,), (), num_failed, note)}


MEMORY = Measurement((GROWN,), measure)
