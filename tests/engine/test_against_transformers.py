"""Two hundred random requests through a crowded engine, against `transformers`: token for token, whoever shares the steps."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from twostep.core.errors import RequestFault
from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules
from twostep.engine.config import EngineConfig, SchedulingConfig
from twostep.engine.engine import Busy, Engine, StepResult
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.engine.fakes import ONE
from twostep.tests.engine.tiny_llama import TinyLlama, write_tiny_llama

pytestmark = pytest.mark.model

NUM_REQUESTS = 200
NUM_BLOCKS = 11
BLOCK_BYTES = 3 * 2 * 32 * 2 * 16 * 4
PROMPTS = {"bad": tuple(range(3, 60)), "good": tuple(range(60, 130))}
COMMON = [(7 * place) % 131 for place in range(100)]


def draw(chance: Random, number: int) -> Request:
    """A greedy request of up to 150 tokens; every other begins like many others."""
    common = COMMON[: chance.choice([0, 0, 32, 64, 100])]
    own = chance.choices(range(131), k=chance.randint(1, 50))
    level = ServiceLevel(priority=chance.randint(-1, 1), tenant=chance.choice("abc"))
    stop = StopRules(max_tokens=chance.choice([1, 3, 30, 90]))
    return Request(RequestId(f"r{number}"), (*common, *own), SamplingParams(0, temperature=0.0), stop, level=level)


class Crowd:
    """Serves all requests, as many at once as find room; some of them pause now and then."""

    def __init__(self, engine: Engine, requests: list[Request], chance: Random) -> None:
        self.engine = engine
        self.answers: dict[str, list[int]] = {request.id: [] for request in requests}
        self.seen: Counter[str] = Counter()
        self._waiting = list(reversed(requests))
        self._paused: set[RequestId] = set()
        self._chance = chance

    def serve(self) -> None:
        while self._waiting or self.engine.requests():
            while self._waiting and self._admit(self._waiting[-1]):
                self._waiting.pop()
            self._pause()
            result = self.engine.step()
            if result:
                self._collect(result)
            else:
                self._resume()

    def _admit(self, request: Request) -> bool:
        try:
            reservation = self.engine.reserve(request, growth_tokens=1)
        except Busy:
            return False
        self.engine.start(request.id, attempt=ONE)
        self.seen["hit"] += reservation.cached_tokens > 0
        return True

    def _pause(self) -> None:
        if self._chance.random() < 0.05:
            self._paused.add(request := self._chance.choice(sorted(self.engine.requests())))
            self.seen["paused"] += self.engine.pause(request)
        if self._chance.random() < 0.02:
            self._resume()

    def _resume(self) -> None:
        while self._paused:
            self.engine.resume(self._paused.pop())

    def _collect(self, result: StepResult) -> None:
        assert not result.faults
        self.seen["preempted"] += len(result.preempted)
        self.seen["chunked"] += any(chunk.draw is None for chunk in result.batch.chunks)
        self.seen["shared"] += len(result.batch.chunks) > 1
        for event in result.events:
            self.answers[event.request].append(event.token)
            if event.finish:
                self.engine.release(event.request)


def expected(model: TinyLlama, request: Request, answer: list[int]) -> list[int]:
    """Return the token that `transformers` puts in each place of `answer`, given those before it."""
    logits = model.logits([*request.prompt, *answer])
    return [int(token) for token in logits.argmax(-1)[len(request.prompt) - 1 : -1]]


def test_random_requests_draw_what_transformers_draws(tmp_path: Path) -> None:
    model, chance = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4), Random(7)
    scheduling = SchedulingConfig(turn_tokens=20, min_run_tokens=4, max_wait_s=1e-3)
    config = EngineConfig(
        dtype="float32",
        kv_bytes=NUM_BLOCKS * BLOCK_BYTES,
        num_threads=1,
        token_budget=24,
        min_prefill_tokens=5,
        max_batch=8,
        scheduling=scheduling,
    )
    requests = [draw(chance, number) for number in range(NUM_REQUESTS)]
    crowd = Crowd(Engine(TorchRunner(model.folder, config), config, clock=lambda: 0.0), requests, chance)
    crowd.serve()
    wrong = [one.id for one in requests if expected(model, one, crowd.answers[one.id]) != crowd.answers[one.id]]
    assert wrong == []
    assert [len(crowd.answers[one.id]) for one in requests] == [one.stop.max_tokens for one in requests]
    assert min(crowd.seen[what] for what in ("hit", "chunked", "preempted", "paused", "shared")) > 10
    census = crowd.engine.census()
    assert (census.referenced, census.free + census.cached) == (0, NUM_BLOCKS)
    assert crowd.engine.audit() == ()


def test_nan_ends_the_request_it_befell_and_nobody_elses_answer_changes(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4)
    config = EngineConfig(dtype="float32", kv_bytes=40 * BLOCK_BYTES, num_threads=1)
    engine = Engine(TorchRunner(model.folder, config), config, clock=lambda: 0.0)
    requests = {
        name: Request(RequestId(name), prompt, SamplingParams(0, 0.0), StopRules(20)) for name, prompt in PROMPTS.items()
    }
    tables = {}
    for name, request in requests.items():
        tables[name] = engine.reserve(request, growth_tokens=20).table
        engine.start(request.id, attempt=ONE)
    tokens: dict[str, list[int]] = {name: [] for name in requests}
    faults = []
    while result := engine.step():
        for event in result.events:
            tokens[event.request].append(event.token)
        faults += [(request, type(error)) for request, error in result.faults]
        if result.record.number == 5:
            engine.runner.kv.words[:, tables["bad"][0]] = np.float32(np.nan).view(np.uint32)
    assert faults == [("bad", RequestFault)]
    assert len(tokens["bad"]) == 5
    assert tokens["good"] == expected(model, requests["good"], tokens["good"])
    assert engine.reserve(replace(requests["bad"], id=RequestId("again")), growth_tokens=1).cached_tokens == 0
