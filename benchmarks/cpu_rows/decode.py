"""A decode step of SmolLM2 in bfloat16 on all cores, at two contexts and three batch sizes, and how fast it reads weights."""

from twostep.benchmarks.cpu_rows.mixed_load import BY_BUDGET_ALONE
from twostep.benchmarks.cpu_rows.one_engine import OneEngine, read_bytes_per_s
from twostep.benchmarks.cpu_rows.vllm_peer import VllmPeer, in_turn, vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, alternate
from twostep.benchmarks.harness.rows import Measured

CASES = [(context, batch) for context in (64, 512) for batch in (1, 8, 32)]
TOKEN_BUDGET = 2048
"""Prompts are computed in few steps, in which those that are through already draw few tokens."""
WEIGHTS = "weights read in a decode step, context 64, batch 1"
WEIGHT_BYTES = 2 * 134_515_008
"""All of SmolLM2's parameters: the head is the embedding."""


def row(context: int, batch: int) -> str:
    return f"decode step, context {context}, batch {batch}"


async def _steps(effort: Effort) -> Outcomes:
    engine = _engine()
    async with vllm_peer(TOKEN_BUDGET) as peer:
        return {row(*case): await _step(engine, peer, *case, effort) for case in CASES}


async def _step(engine: OneEngine, peer: VllmPeer | None, context: int, batch: int, effort: Effort) -> Measured:
    async def ours() -> float:
        return 1e3 * engine.decode_step_s(engine.prompts(batch, context))

    async def theirs(peer: VllmPeer) -> float:
        return 1e3 * await peer.decode_step_s(engine.prompts(batch, context))

    return await in_turn(ours, peer, theirs, effort.rounds)


async def _weights(effort: Effort) -> Outcomes:
    engine = _engine()

    async def ours() -> float:
        return WEIGHT_BYTES / 1e9 / engine.decode_step_s(engine.prompts(1, 64))

    async def limit() -> float:
        return read_bytes_per_s() / 1e9

    return {WEIGHTS: await alternate(ours, limit, effort.rounds)}


def _engine() -> OneEngine:
    return OneEngine(token_budget=TOKEN_BUDGET, scheduling=BY_BUDGET_ALONE)


DECODE_STEPS = Measurement(tuple(row(*case) for case in CASES), _steps)
WEIGHTS_READ = Measurement((WEIGHTS,), _weights)
