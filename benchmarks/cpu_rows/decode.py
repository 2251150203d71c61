"""A decode step of SmolLM2 in bfloat16 on all cores, at two contexts and three batch sizes, and how fast it reads weights."""

from functools import partial

from twostep.benchmarks.cpu_rows.one_engine import NUM_STEPS, OneEngine, read_bytes_per_s
from twostep.benchmarks.cpu_rows.vllm_peer import VllmPeer, vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, alternate, repeat
from twostep.benchmarks.harness.rows import Measured

BATCHES = 1, 8, 32
WEIGHTS = "weights read in a decode step, context 64, batch 1"
WEIGHT_BYTES = 2 * 134_515_008
"""All of SmolLM2's parameters: the head is the embedding."""


def _rows(context: int) -> dict[str, int]:
    return {f"decode step, context {context}, batch {batch}": batch for batch in BATCHES}


async def _steps(context: int, effort: Effort) -> Outcomes:
    engine = OneEngine()
    async with vllm_peer() as peer:
        return {row: await _step(engine, peer, context, batch, effort) for row, batch in _rows(context).items()}


async def _step(engine: OneEngine, peer: VllmPeer | None, context: int, batch: int, effort: Effort) -> Measured:
    async def ours() -> float:
        return engine.decode_step_ms(context, batch)

    async def theirs(peer: VllmPeer) -> float:
        long_s = await peer.generate_s(engine.prompts(batch, context), NUM_STEPS + 1)
        return 1e3 * (long_s - await peer.generate_s(engine.prompts(batch, context), 1)) / NUM_STEPS

    return await (repeat(ours, effort.rounds) if peer is None else alternate(ours, lambda: theirs(peer), effort.rounds))


async def _weights(effort: Effort) -> Outcomes:
    engine = OneEngine()

    async def ours() -> float:
        return WEIGHT_BYTES / 1e6 / engine.decode_step_ms(64, 1)

    async def limit() -> float:
        return read_bytes_per_s() / 1e9

    return {WEIGHTS: await alternate(ours, limit, effort.rounds)}


DECODE_STEPS = [Measurement(tuple(_rows(context)), partial(_steps, context)) for context in (64, 512)]
WEIGHTS_READ = Measurement((WEIGHTS,), _weights)
