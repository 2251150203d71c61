"""A first look at the whole: one engine with the fake runner."""

import time

from twostep.core.ids import Attempt, RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.fake_runner import FakeModel, FakeRunner


def test_an_engine_alone_answers_and_frees_everything() -> None:
    config = EngineConfig(kv_bytes=1 << 20)
    engine = Engine(FakeRunner(FakeModel(), config), config, clock=time.monotonic)
    prompt = tuple(range(100))
    request = Request(RequestId("r"), prompt, SamplingParams(seed=1, temperature=0.0), StopRules(max_tokens=5))
    reservation = engine.reserve(request, growth_tokens=5)
    assert reservation.table == (0, 1, 2, 3)
    engine.start(request.id, attempt=Attempt(1))
    events = []
    while (result := engine.step()) is not None:
        events += result.events
    assert [event.index for event in events] == [0, 1, 2, 3, 4]
    assert events[-1].finish is FinishReason.LENGTH
    assert engine.release(request.id)
    assert engine.census().referenced == 0
    assert engine.census().cached == 3
