"""A decode step of SmolLM2 in bfloat16 on all cores, at two contexts and three batch sizes, and how fast it reads weights."""

from functools import partial

from twostep.benchmarks.cpu_rows.mixed_load import BY_BUDGET_ALONE
from twostep.benchmarks.cpu_rows.one_engine import OneEngine, read_bytes_per_s
from twostep.benchmarks.cpu_rows.vllm_peer import vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, alternate, repeat

CONTEXTS, BATCHES = (64, 512), (1, 8, 32)
TOKEN_BUDGET = 2048
"""Prompts are computed in few steps, in which those that are through already draw few tokens."""
WEIGHTS = "weights read in a decode step, context 64, batch 1"
WEIGHT_BYTES = 2 * 134_515_008
"""All of SmolLM2's parameters: the head is the embedding."""


def row(context: int, batch: int) -> str:
    return f"decode step, context {context}, batch {batch}"


async def _step(context: int, batch: int, effort: Effort) -> Outcomes:
    engine = _engine()

    async def ours() -> float:
        return 1e3 * engine.decode_step_s(engine.prompts(batch, context))

    async with vllm_peer(TOKEN_BUDGET) as peer:
        if peer is None:
            return {row(context, batch): await repeat(ours, effort.rounds)}
        vllm = peer

        async def theirs() -> float:
            return 1e3 * await vllm.decode_step_s(engine.prompts(batch, context))

        return {row(context, batch): await alternate(ours, theirs, effort.rounds)}


async def _weights(effort: Effort) -> Outcomes:
    engine = _engine()

    async def ours() -> float:
        return WEIGHT_BYTES / 1e9 / engine.decode_step_s(engine.prompts(1, 64))

    async def limit() -> float:
        return read_bytes_per_s() / 1e9

    return {WEIGHTS: await alternate(ours, limit, effort.rounds)}


def _engine() -> OneEngine:
    return OneEngine(token_budget=TOKEN_BUDGET, scheduling=BY_BUDGET_ALONE)


DECODE_STEPS = [
    Measurement((row(context, batch),), partial(_step, context, batch)) for context in CONTEXTS for batch in BATCHES
]
WEIGHTS_READ = Measurement((WEIGHTS,), _weights)
