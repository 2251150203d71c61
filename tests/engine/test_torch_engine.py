"""The engine over a real model: in a crowd with chunks, prefix hits and preemption a request draws what it draws alone."""

from pathlib import Path
from typing import Any

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.engine.fakes import drain, put, tokens_by_request
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
