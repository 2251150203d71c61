"""A decode step of SmolLM2 in bfloat16 on all cores, at two contexts and three batch sizes, and how fast it reads weights."""

from twostep.benchmarks.cpu_rows.one_engine import OneEngine, read_bytes_per_s
from twostep.benchmarks.cpu_rows.vllm_peer import VllmPeer, vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, alternate, repeat
from twostep.benchmarks.harness.rows import Measured

CASES = {f"decode step, context {context}, batch {batch}": (context, batch) for context in (64, 512) for batch in (1, 8, 32)}
WEIGHTS = "weights read in a decode step, context 64, batch 1"
WEIGHT_BYTES = 2 * 134_515_008
"""All of SmolLM2's parameters: the head is the embedding."""


async def measure(effort: Effort) -> Outcomes:
    engine = OneEngine()
    async with vllm_peer() as peer:
        steps = {name: await _step(engine, peer, context, batch, effort) for name, (context, batch) in CASES.items()}
    return {**steps, WEIGHTS: await _weights(engine, effort)}


async def _step(engine: OneEngine, peer: VllmPeer | None, context: int, batch: int, effort: Effort) -> Measured:
    async def ours() -> float:
        return engine.decode_step_ms(engine.prompts(batch, context))

    if peer is None:
        return await repeat(ours, effort.rounds)
    return await alternate(ours, lambda: peer.decode_step_ms(engine.prompts(batch, context)), effort.rounds)


async def _weights(engine: OneEngine, effort: Effort) -> Measured:
    async def ours() -> float:
        return WEIGHT_BYTES / 1e6 / engine.decode_step_ms(engine.prompts(1, 64))

    async def limit() -> float:
        return read_bytes_per_s() / 1e9

    return await alternate(ours, limit, effort.rounds)


DECODE_ROWS = Measurement((*CASES, WEIGHTS), measure)
