"""vLLM as a peer on the same cores, in a process of its own: `TWOSTEP_VLLM_PYTHON` names the interpreter that has it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twostep.benchmarks.cpu_rows.mixed_load import CALM_STEPS, LONGEST, LONGEST_DECODED, NUM_STEPS, Latencies, MixedLoad
from twostep.benchmarks.cpu_rows.one_engine import NUM_THREADS
from twostep.benchmarks.harness.rounds import Side, alternate, repeat
from twostep.benchmarks.harness.rows import Measured
from twostep.cli.model_store.catalogue import find_model

VARIABLE = "TWOSTEP_VLLM_PYTHON"
PROGRAM = Path(__file__).parent / "vllm_program.py"
ANSWER_LIMIT_S = 400.0
"""The first answer waits for vLLM to start and to compile."""
LINE_BYTES = 1 << 20
ANSWER = "answer "


class VllmPeer:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def generate_s(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Return how long it takes to generate `num_tokens` for each of `prompts`. Raises ConnectionError when it has ended."""
        took_s: float = await self._ask(prompts=prompts, num_tokens=num_tokens)
        return took_s

    async def decode_step_s(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return how long a step takes in which each of `prompts` gets a token. Raises ConnectionError when it has ended."""
        step_s: float = await self._ask(decodes=prompts, num_steps=NUM_STEPS, longest=LONGEST_DECODED)
        return step_s

    async def mixed(self, load: MixedLoad) -> Latencies:
        """Let the streams run, and put the prompts to vLLM one after the other. Raises ConnectionError when it has ended."""
        return Latencies(**await self._ask(**asdict(load), calm_steps=CALM_STEPS, longest=LONGEST))

    async def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while line := (await self._process.stdout.readline()).decode():
                if line.startswith(ANSWER):
                    return json.loads(line.removeprefix(ANSWER))
        raise ConnectionError("vLLM has ended")


async def in_turn(ours: Side, peer: VllmPeer | None, theirs: Callable[[VllmPeer], Awaitable[float]], rounds: int) -> Measured:
    """Measure our side, in turn with vLLM's where it is."""
    return await (repeat(ours, rounds) if peer is None else alternate(ours, lambda: theirs(peer), rounds))


@asynccontextmanager
async def vllm_peer(token_budget: int | None = None) -> AsyncIterator[VllmPeer | None]:
    """Start vLLM and have it answer once; None where the environment names no interpreter.

    `token_budget` is what a step may compute, prefill in chunks; unset: what vLLM takes by itself.
    """
    python = os.environ.get(VARIABLE)
    if not python:
        yield None
        return
    process = await asyncio.create_subprocess_exec(
        python,
        str(PROGRAM),
        json.dumps({"model": str(find_model("smollm2")), "token_budget": token_budget}),
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | _settings(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    try:
        peer = VllmPeer(process)
        await peer.generate_s([[1, 2, 3]], 2)
        yield peer
    finally:
        process.kill()
        await process.wait()


def _settings() -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
