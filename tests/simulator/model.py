"""The fake model of the simulator, small enough for thousands of runs, and the oracle: what one engine alone answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from twostep.core.digest import Digests, Words
from twostep.core.ids import Attempt, BlockId, RequestId
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.request import Request, SamplingParams, StopRules, TokenEvent
from twostep.engine.batch import Batch
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.fake_runner import FakeModel, FakeRunner
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.runner import Collect, OnLayers
from twostep.tests.simulator.fiber import breathe

MODEL = FakeModel(vocab_size=997, num_layers=2, num_kv_heads=1, head_dim=1, max_model_tokens=512)
SHORT, MAX_TOKENS = 14, 72
"""The longest of most answers, and of all: few are long enough to outgrow what was reserved for them."""


def engine_config(num_blocks: int, *, block_tokens: int = 32, token_budget: int = 512, layer_group: int = 2) -> EngineConfig:
    block_bytes = MODEL.num_layers * MODEL.num_kv_heads * block_tokens * 2 * MODEL.head_dim * 4
    return EngineConfig(
        dtype="float32",
        block_tokens=block_tokens,
        kv_bytes=num_blocks * block_bytes,
        token_budget=token_budget,
        layer_group=layer_group,
        max_batch=6,
    )


class SlowKVCache(HostKVCache):
    """Copies in pieces, and may be left between two of them. `on_copy` hears which positions of which table come next."""

    on_copy: Callable[[tuple[BlockId, ...], range], None] = staticmethod(lambda table, positions: None)

    def copy_in(self, extent: MemoryRegion, piece: LandedPiece, table: Sequence[BlockId]) -> Digests:
        blocks = piece.source_blocks
        parts = [range(block, block + 1) for block in blocks] if len(blocks) > 1 else [blocks]
        digests = []
        for part in parts:
            breathe()
            self.on_copy(tuple(table), range(piece.tokens_of(part[0]).start, piece.tokens_of(part[-1]).end))
            one = LandedPiece(piece.layers, part, piece.missing, piece.source_block_tokens, piece.num_slots)
            digests.append(super().copy_in(extent, one, table))
        return np.concatenate(digests, axis=1)


class SlowRunner(FakeRunner):
    """A step may be left before it begins and after each group of layers."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(MODEL, config, on_run=_breathe)
        self.kv = SlowKVCache(self.kv.layout, self.kv.num_blocks)

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        def written(layers: range) -> None:
            on_layers(layers)
            breathe()

        return super().launch(batch, written)


def _breathe(batch: Batch) -> None:
    breathe()


@dataclass(frozen=True, slots=True)
class Expected:
    tokens: tuple[int, ...]
    finish: str


def expected(request: Request) -> Expected:
    """Return what an undisturbed engine answers. The rules by which it ends are written down here once more."""
    stop = request.stop
    drawn = _undisturbed(request.prompt, request.sampling, SHORT if stop.max_tokens <= SHORT else MAX_TOKENS)
    for index, token in enumerate(drawn):
        if token in stop.stop_ids or (token in stop.eos_ids and not stop.ignore_eos):
            return Expected(drawn[: index + 1], "stop")
        if index + 1 == stop.max_tokens:
            return Expected(drawn[: index + 1], "length")
    raise ValueError(f"{request.id} wants more than {MAX_TOKENS} tokens")


@lru_cache(maxsize=4096)
def expected_kv(tokens: tuple[int, ...]) -> Words:
    """Return the KV that an undisturbed engine computes for `tokens`, as uint32 [layer, token, head, word]."""
    config = engine_config(20)
    runner = FakeRunner(MODEL, config)
    engine = Engine(runner, config, clock=lambda: 0.0)
    request = Request(RequestId("oracle"), tokens, SamplingParams(seed=0, temperature=0.0), StopRules(max_tokens=1))
    reservation = engine.reserve(request, growth_tokens=1)
    engine.start(request.id, attempt=Attempt(1))
    engine.step()
    positions = np.arange(len(tokens))
    blocks = np.asarray(reservation.table)[positions // config.block_tokens]
    return runner.kv.words[:, blocks, :, positions % config.block_tokens].swapaxes(0, 1)


@lru_cache(maxsize=4096)
def _undisturbed(prompt: tuple[int, ...], sampling: SamplingParams, num_tokens: int) -> tuple[int, ...]:
    config = engine_config(20)
    engine = Engine(FakeRunner(MODEL, config), config, clock=lambda: 0.0)
    request = Request(RequestId("oracle"), prompt, sampling, StopRules(max_tokens=num_tokens))
    engine.reserve(request, growth_tokens=1)
    engine.start(request.id, attempt=Attempt(1))
    events: list[TokenEvent] = []
    while (result := engine.step()) is not None:
        events += result.events
    return tuple(event.token for event in events)
