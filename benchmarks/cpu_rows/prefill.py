"""Prefill of one prompt of SmolLM2 in bfloat16 on all cores, to its first token, and the arithmetic that it comes to."""

from twostep.benchmarks.cpu_rows.one_engine import OneEngine, gemm_flops
from twostep.benchmarks.cpu_rows.vllm_peer import VllmPeer, in_turn, vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, alternate
from twostep.benchmarks.harness.rows import Measured

CASES = {f"prefill of {num_tokens} tokens": num_tokens for num_tokens in (512, 2048)}
ARITHMETIC = "prefill of 512 tokens, arithmetic"
LAYER_PARAMETERS = 106_168_320
"""What multiplies each token; the head multiplies the last one alone."""


async def measure(effort: Effort) -> Outcomes:
    engine = OneEngine()
    async with vllm_peer() as peer:
        speeds = {name: await _speed(engine, peer, num_tokens, effort) for name, num_tokens in CASES.items()}
    return {**speeds, ARITHMETIC: await _arithmetic(engine, effort)}


async def _speed(engine: OneEngine, peer: VllmPeer | None, num_tokens: int, effort: Effort) -> Measured:
    async def ours() -> float:
        return num_tokens / engine.generate_s(engine.prompts(1, num_tokens), 1)

    async def theirs(peer: VllmPeer) -> float:
        return num_tokens / await peer.generate_s(engine.prompts(1, num_tokens), 1)

    return await in_turn(ours, peer, theirs, effort.rounds)


async def _arithmetic(engine: OneEngine, effort: Effort) -> Measured:
    async def ours() -> float:
        return 2 * 512 * LAYER_PARAMETERS / 1e12 / engine.generate_s(engine.prompts(1, 512), 1)

    async def limit() -> float:
        return gemm_flops() / 1e12

    measured = await alternate(ours, limit, effort.rounds)
    return Measured(
        measured.ours, measured.peer, note="of all time, what the linear layers' products would be; attention is not counted"
    )


PREFILL_ROWS = Measurement((*CASES, ARITHMETIC), measure)
