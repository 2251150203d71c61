"""The engine over a real model: a request draws what it draws alone, in a crowd with chunks, hits and preemption, and across a
handoff."""

from pathlib import Path
from typing import Any

import pytest

from twostep.core.ids import BlockId, RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.core.ticket import TokenRange
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.engine.by_hand import ATTEMPT, Carrier
from twostep.tests.engine.fakes import drain, put, run_out, tokens_by_request
from twostep.tests.engine.test_same_tokens import Server
from twostep.tests.engine.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.model

BLOCK_BYTES = {"float32": 3 * 2 * 32 * 2 * 16 * 4, "bfloat16": 3 * 2 * 32 * 2 * 16 * 2}
SAMPLING = [
    SamplingParams(5, temperature=0.0),
    SamplingParams(6, temperature=1.0),
    SamplingParams(7, temperature=0.8, top_p=0.9),
    SamplingParams(8, temperature=1.2, top_k=20),
    SamplingParams(9, temperature=0.7, min_p=0.05),
]
SHARED = [(7 * at) % 131 for at in range(70)]


NUM_LAYERS = 3


def engine_of(folder: Path, dtype: str, num_blocks: int, **config: Any) -> Engine:
    filled = EngineConfig(dtype=dtype, kv_bytes=num_blocks * BLOCK_BYTES[dtype], num_threads=1, **config)
    return Engine(TorchRunner(folder, filled), filled, clock=lambda: 0.0)


def request(number: int) -> Request:
    prompt = SHARED[: 20 + 13 * number] + [number] * 5
    return Request(RequestId(f"r{number}"), tuple(prompt), SAMPLING[number], StopRules(max_tokens=70))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_draws_in_a_crowd_what_it_draws_alone(dtype: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4).folder
    alone: dict[str, list[int]] = {}
    for number in range(len(SAMPLING)):
        solo = engine_of(folder, dtype, 20)
        put(solo, request(number))
        alone |= tokens_by_request(drain(solo))
    server = Server(engine_of(folder, dtype, 9, token_budget=17, min_prefill_tokens=5))
    found = server.serve([request(number) for number in range(len(SAMPLING))])
    assert found == alone
    assert {what for what in server.seen if server.seen[what]} == {"hit", "chunked", "preempted"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_handed_off_request_draws_what_one_engine_draws_and_its_prompt_is_the_same_to_the_bit(
    dtype: str, kernels: str, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4).folder
    requests = [request(number) for number in (4, 2, 0)]
    alone = {}
    for one in requests:
        solo = engine_of(folder, dtype, 20, kernels=kernels)
        table = solo.reserve(one, growth_tokens=1).table
        solo.start(one.id, attempt=ATTEMPT)
        alone[one.id] = [event.token for event in run_out(solo)], prompt_digest(solo, one, table)
    source = engine_of(folder, dtype, 20, token_budget=17, min_prefill_tokens=5, kernels=kernels)
    carrier = Carrier(source, engine_of(folder, dtype, 40, block_tokens=64, kernels=kernels))
    # The first one alone: some of the others then find a prefix of theirs on P. They share steps, there and on D.
    assert handed_off(carrier, requests[:1]) | handed_off(carrier, requests[1:]) == alone
    assert source.load().num_steps > len(requests)


def handed_off(carrier: Carrier, requests: list[Request]) -> dict[RequestId, tuple[list[int], list[int]]]:
    """Return what each request draws on P and D, and the digest of its prompt's KV as it was attached."""
    legs = {one.id: carrier.open(one) for one in requests}
    firsts, digests = {}, {}
    while (result := carrier.source.step()) is not None:
        for event in result.events:
            leg = legs[event.request]
            carrier.carry(leg)
            firsts[event.request] = event.token
            digests[event.request] = prompt_digest(carrier.destination, leg.there.request, leg.there.table)
            carrier.destination.attach(event.request, event.token, attempt=ATTEMPT)
            carrier.source.release(event.request)
    rest = tokens_by_request(drain(carrier.destination))
    return {name: ([first, *rest[name]], digests[name]) for name, first in firsts.items()}


def prompt_digest(engine: Engine, one: Request, table: tuple[BlockId, ...]) -> list[int]:
    """Return the digest of each layer's KV of the prompt: the same for any size of blocks."""
    found = engine.runner.kv.digest(range(NUM_LAYERS), TokenRange(0, len(one.prompt)), table)
    return [int(layer) for layer in found.sum(axis=1)]
