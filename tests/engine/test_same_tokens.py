"""The engine's promise: whatever the chunks, budget, mates, prefix hits, block size, preemptions and depth, the same tokens."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from twostep.core.request import Request
from twostep.engine.engine import Busy, Engine, StepResult
from twostep.tests.engine.fakes import ONE, SMALL, build_engine
from twostep.tests.engine.request_specs import RequestSpec, request_specs, solo


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    block_tokens = draw(st.sampled_from([32, 64]))
    return {
        "block_tokens": block_tokens,
        "num_blocks": draw(st.sampled_from([8, 10, 14])) * 32 // block_tokens,
        "token_budget": draw(st.integers(1, 150)),
        "min_prefill_tokens": draw(st.integers(1, 64)),
        "max_batch": draw(st.integers(2, 5)),
        "layer_group": draw(st.integers(1, 3)),
        "model": replace(SMALL, depth=draw(st.integers(1, 3))),
    }


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(request_specs(max_draws=60), min_size=2, max_size=5), shapes())
def test_a_request_draws_the_same_tokens_alone_and_in_any_company(asked: list[RequestSpec], shape: dict[str, Any]) -> None:
    server = Server(build_engine(**shape))
    tokens = server.serve([spec.named(f"r{i}") for i, spec in enumerate(asked)])
    assert tokens == {f"r{i}": solo(spec) for i, spec in enumerate(asked)}
    census = server.engine.census()
    assert (census.referenced, census.free + census.cached) == (0, census.total)
    for what in ("hit", "chunked", "preempted"):
        event(f"{what}: {server.seen[what] > 0}")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crowd_meets_hits_chunks_and_preemption(depth: int) -> None:
    """What the random cases are to cover, in one case that surely does."""
    spec = RequestSpec(prompt=tuple(range(64)), output_tokens=(), num_draws=90, temperature=1.0, seed=0)
    server = Server(build_engine(num_blocks=8, token_budget=40, max_batch=4, model=replace(SMALL, depth=depth)))
    tokens = server.serve([spec.named(f"r{i}") for i in range(6)])
    assert tokens == {f"r{i}": solo(spec) for i in range(6)}
    assert min(server.seen[what] for what in ("hit", "chunked", "preempted")) > 0


class Server:
    """Serves requests in order, as a node would: reserves when there is room, releases what has finished."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: Counter[str] = Counter()
        self._tokens: dict[str, list[int]] = {}

    def serve(self, requests: list[Request]) -> dict[str, list[int]]:
        waiting = list(requests)
        self._tokens = {request.id: [] for request in requests}
        while True:
            while waiting and self._admit(waiting[0]):
                waiting.pop(0)
            result = self.engine.step()
            if result is None:
                assert not waiting
                return self._tokens
            self._collect(result)

    def _admit(self, request: Request) -> bool:
        try:
            reservation = self.engine.reserve(request, growth_tokens=1)
        except Busy:
            return False
        self.seen["hit"] += reservation.cached_tokens > 0
        self.engine.start(request.id, attempt=ONE)
        return True

    def _collect(self, result: StepResult) -> None:
        self.seen["preempted"] += len(result.preempted)
        self.seen["chunked"] += any(chunk.draw is None for chunk in result.batch.chunks)
        for each in result.events:
            self._tokens[each.request].append(each.token)
            if each.finish:
                self.engine.release(each.request)
