"""Engines over the fake model, and requests to put to them."""

from collections.abc import Callable, Sequence
from typing import Any

from twostep.core.ids import Attempt, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.core.request import UNTIMED, Request, SamplingParams, ServiceLevel, StopRules, Timing, TokenEvent
from twostep.engine.batch import Batch
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine, StepResult
from twostep.engine.fake_runner import FakeModel, FakeRunner

SMALL = FakeModel(vocab_size=97, num_layers=3, num_kv_heads=2, head_dim=4)
ONE = Attempt(1)
USUAL = ServiceLevel()


def build_engine(
    *,
    num_blocks: int = 64,
    block_tokens: int = 32,
    model: FakeModel = SMALL,
    clock: Callable[[], float] = lambda: 0.0,
    on_layers: Callable[[Batch, range], None] | None = None,
    on_run: Callable[[Batch], None] | None = None,
    **config: Any,
) -> Engine:
    layout = KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, block_tokens, "bfloat16")
    filled = EngineConfig(**{"layer_group": 2, **config}, block_tokens=block_tokens, kv_bytes=num_blocks * layout.block_bytes)
    return Engine(FakeRunner(model, filled, on_run=on_run), filled, clock=clock, on_layers=on_layers)


def ask(
    name: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    temperature: float = 0.0,
    seed: int = 7,
    output_tokens: Sequence[int] = (),
    stop_ids: Sequence[int] = (),
    cache_salt: bytes = b"",
    level: ServiceLevel = USUAL,
) -> Request:
    return Request(
        RequestId(name),
        tuple(prompt),
        SamplingParams(seed, temperature),
        StopRules(max_tokens, stop_ids=frozenset(stop_ids)),
        tuple(output_tokens),
        cache_salt,
        level,
    )


def put(engine: Engine, request: Request, timing: Timing = UNTIMED) -> None:
    """Reserve and start a request that the engine serves alone."""
    engine.reserve(request, growth_tokens=1)
    engine.start(request.id, attempt=ONE, timing=timing)


def drain(engine: Engine) -> list[StepResult]:
    """Step to the end; release each request as it finishes, as its owner would."""
    results = []
    while (result := engine.step()) is not None:
        results.append(result)
        for event in result.events:
            if event.finish:
                engine.release(event.request)
    return results


def run_out(engine: Engine) -> list[TokenEvent]:
    """Step to the end, release nothing, and return all events."""
    events: list[TokenEvent] = []
    while (result := engine.step()) is not None:
        events += result.events
    return events


def tokens_by_request(results: Sequence[StepResult]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for result in results:
        for event in result.events:
            tokens.setdefault(event.request, []).append(event.token)
    return tokens
