"""Whether a prefill and a decode node together say, token for token, what one engine alone says."""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from tokenizers import Tokenizer

from twostep.benchmarks.cluster.running import running_cluster
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.cli.model_store.catalogue import find_model
from twostep.core.ids import Attempt, RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.runners import build_runner

DTYPES: Sequence[Literal["float32", "bfloat16"]] = ("float32", "bfloat16")
SAME = "answers equal to one engine's, greedy, {}"
LENGTHS = (1, 31, 32, 33, 100, 256, 300, 511, 512, 513, 600, 700)
OUTPUT_TOKENS = 24


class OneEngine:
    """SmolLM2 in this process, one request at a time, each with a prefix cache that knows nothing."""

    def __init__(self, dtype: Literal["float32", "bfloat16"]) -> None:
        folder, config = find_model("smollm2"), EngineConfig(dtype=dtype, kv_bytes=256 << 20, num_threads=1)
        self._engine = Engine(build_runner(folder, config), config, clock=time.monotonic)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, prompt: Sequence[int]) -> str:
        """Return the greedy answer's text."""
        rules = StopRules(OUTPUT_TOKENS, ignore_eos=True)
        request = Request(RequestId("alone"), tuple(prompt), SamplingParams(seed=0, temperature=0.0), rules)
        self._engine.reserve(request, growth_tokens=1)
        self._engine.start(request.id, attempt=Attempt(1))
        tokens: list[int] = []
        while (result := self._engine.step()) is not None:
            tokens += [event.token for event in result.events]
        self._engine.release(request.id)
        text: str = self._tokenizer.decode(tokens)
        return text


async def measure(effort: Effort) -> Outcomes:
    prompts = [Prompts(seed).draw(length) for seed, length in enumerate(LENGTHS[: effort.pick(len(LENGTHS), 4)])]
    return {SAME.format(dtype): await _compare(prompts, dtype) for dtype in DTYPES}


async def _compare(prompts: Sequence[list[int]], dtype: Literal["float32", "bfloat16"]) -> Measured:
    async with running_cluster("model=smollm2", f"engine.dtype={dtype}") as cluster:
        answers = await asyncio.gather(*(cluster.client.ask(prompt, OUTPUT_TOKENS) for prompt in prompts))
    alone = await asyncio.to_thread(lambda engine: [engine.text(prompt) for prompt in prompts], OneEngine(dtype))
    same = sum(answer.text == text for answer, text in zip(answers, alone, strict=True))
    note = f"{same} of {len(prompts)} prompts of up to {len(prompts[-1])} tokens, {OUTPUT_TOKENS} tokens each, all at once"
    return Measured((100 * same / len(prompts),), num_failed=sum(bool(answer.error) for answer in answers), note=note)


SAMENESS = Measurement(tuple(map(SAME.format, DTYPES)), measure)
