"""Prompts of 220 KB: what the router takes for them beside the tokenizer alone, and what it lets others feel of them."""

import asyncio
import time
from collections.abc import Sequence

from tokenizers import Tokenizer

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.stand import MODEL, Server, send, standing
from twostep.cli.model_store.catalogue import find_model

COLD = "220 KB prompts, cold: tokenized per core-second"
OTHERS = "220 KB prompts, cold: added to the TTFT p99 of others"
SEEN = "220 KB prompts, 95 % seen before, per core-second"
SEEN_SHARE = 0.95


async def measure(effort: Effort) -> Outcomes:
    library = Tokenizer.from_file(str(find_model(MODEL) / "tokenizer.json"))
    cold: list[float] = []
    alone: list[float] = []
    others_ms: list[float] = []
    seen: list[float] = []
    num_failed = 0
    async with standing(with_peers=False) as stand:
        await send(stand.ours, _cold(stand.ours, 2, 0))
        for number in range(1, effort.rounds + 1):
            alone.append(_alone_per_s(library, number))
            count = effort.pick(20, 8)
            quiet = await send(stand.ours, _short(stand.ours, 4 * count, number))
            before_s = stand.ours.cpu_s()
            long = asyncio.create_task(send(stand.ours, _cold(stand.ours, count, number), at_once=2))
            disturbed = await send(stand.ours, _short(stand.ours, 4 * count, 50 + number))
            others_ms.append((percentile(disturbed.ttft_s, 99) - percentile(quiet.ttft_s, 99)) * 1000)
            failed = (await long).num_failed
            # What the short ones took meanwhile is a few percent, and counted against us.
            cold.append(count / (stand.ours.cpu_s() - before_s))
            rate, seen_failed = await _seen(stand.ours, effort.pick(40, 16), number)
            seen.append(rate)
            num_failed += quiet.num_failed + disturbed.num_failed + failed + seen_failed
    return {
        COLD: Measured(tuple(cold), tuple(alone), num_failed),
        OTHERS: Measured(tuple(others_ms), (), num_failed),
        SEEN: Measured(tuple(seen), (), num_failed),
    }


async def _seen(server: Server, count: int, seed: int) -> tuple[float, int]:
    """Return requests per core-second whose first 95 % were sent once before."""
    common = prompts.text(int(prompts.LONG_CHARACTERS * SEEN_SHARE), 7000 + seed)
    rest = prompts.LONG_CHARACTERS - len(common)
    bodies = [
        prompts.chat(server.model, common + " " + prompts.text(rest, 100_000 * seed + number), 4) for number in range(count + 1)
    ]
    first = await send(server, bodies[:1])
    before_s = server.cpu_s()
    result = await send(server, bodies[1:], at_once=2)
    return count / (server.cpu_s() - before_s), first.num_failed + result.num_failed


def _alone_per_s(library: Tokenizer, seed: int) -> float:
    """Return what Hugging Face's library encodes of whole texts, without any of ours around it."""
    text = prompts.text(prompts.LONG_CHARACTERS, 900 + seed)
    started = time.process_time()
    library.encode_batch_fast([text], add_special_tokens=False)
    return 1 / (time.process_time() - started)


def _cold(server: Server, count: int, seed: int) -> Sequence[str]:
    texts = [prompts.text(prompts.LONG_CHARACTERS, 1000 * seed + number) for number in range(count)]
    return [prompts.chat(server.model, text, 4) for text in texts]


def _short(server: Server, count: int, seed: int) -> Sequence[str]:
    return [prompts.chat(server.model, prompts.text(1000, 500_000 + 1000 * seed + number), 4) for number in range(count)]


LONG_PROMPTS = Measurement((COLD, OTHERS, SEEN), measure)
