"""The test that matters most: prefill, handoff and decode give, token for token, what one engine alone gives."""

import asyncio
import random
from dataclasses import dataclass

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.fake_runner import FakeModel
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.handoff.mini_router import Served
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

MODEL = FakeModel(vocab_size=64, num_layers=3, num_kv_heads=2, head_dim=4)
BLOCK_BYTES = MODEL.num_layers * MODEL.num_kv_heads * 32 * 2 * MODEL.head_dim * 4
NUM_REQUESTS = 40
STEMS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """One pair of nodes. `num_slots` blocks are the most that a request gets of the landing pool."""

    name: str
    prefill_blocks: int = 60
    decode_blocks: int = 60
    prefill_block_tokens: int = 32
    decode_block_tokens: int = 32
    token_budget: int = 512
    layer_group: int = 2
    num_slots: int = 64
    one_write_tokens: int = 64
    edges: tuple[int, ...] = (32, 64, 96, 128, 160)
    new_tokens: tuple[int, ...] = (1, 1, 2, 2, 3, 5, 8, 12)
    is_ring: bool = False
    may_preempt: bool = False

    def prefill(self) -> PrefillNodeConfig:
        engine = engine_config(
            blocks=self.prefill_blocks,
            model=MODEL,
            block_tokens=self.prefill_block_tokens,
            token_budget=self.token_budget,
            layer_group=self.layer_group,
        )
        return PrefillNodeConfig(engine=engine, one_write_tokens=self.one_write_tokens)

    def decode(self) -> DecodeNodeConfig:
        engine = engine_config(blocks=self.decode_blocks, model=MODEL, block_tokens=self.decode_block_tokens)
        loan = self.num_slots * BLOCK_BYTES * self.prefill_block_tokens // 32
        return DecodeNodeConfig(engine=engine, landing_bytes=4 * loan, landing_share=0.25)


SHAPES = [
    Shape("whole prompts in one step"),
    Shape("chunks that end inside blocks", token_budget=40, layer_group=1, one_write_tokens=0),
    Shape("landing rings of three blocks", num_slots=3, token_budget=70, one_write_tokens=0, is_ring=True),
    Shape("a landing ring of one block", num_slots=1, one_write_tokens=0, is_ring=True),
    Shape("small blocks into large ones", decode_block_tokens=64, decode_blocks=40),
    Shape(
        "large blocks into small ones", prefill_block_tokens=96, prefill_blocks=20, token_budget=100, num_slots=1, is_ring=True
    ),
    Shape(
        "a decode pool that is short of blocks",
        decode_blocks=10,
        edges=(32, 64),
        new_tokens=(1, 70, 80, 90, 100),
        may_preempt=True,
    ),
    Shape("a prefill pool for one prompt at a time", prefill_blocks=7),
]


def random_requests(rng: random.Random, shape: Shape) -> list[Request]:
    """Prompts that share stems, with lengths around block edges, and every way of sampling and stopping."""
    stems = [[rng.randrange(MODEL.vocab_size) for _ in range(128)] for _ in range(STEMS)]
    return [_random_request(rng, shape, stems, number) for number in range(NUM_REQUESTS)]


def _random_request(rng: random.Random, shape: Shape, stems: list[list[int]], number: int) -> Request:
    num_shared = min(rng.choice((0, 31, 32, 33, 64, 96, 100)), max(shape.edges))
    edge = rng.choice(shape.edges)
    length = max(1, num_shared, edge + rng.choice((-1, 0, 1, rng.randrange(-20, 20))))
    stem = rng.choice(stems)[:num_shared]
    tail = [rng.randrange(MODEL.vocab_size) for _ in range(length - len(stem))]
    prompt = tuple(stem + tail)
    forced = tuple(rng.randrange(1, MODEL.vocab_size) for _ in range(rng.choice((0, 0, 0, 1, 5))))
    max_tokens = len(forced) + rng.choice(shape.new_tokens)
    stop_ids = frozenset(rng.sample(range(MODEL.vocab_size), rng.choice((0, 0, 0, 0, 1, 20))))
    return Request(
        RequestId(f"request-{number}"),
        prompt,
        SamplingParams(seed=rng.getrandbits(64), temperature=rng.choice((0.0, 0.0, 0.8))),
        StopRules(max_tokens=max_tokens, eos_ids=frozenset({0}), stop_ids=stop_ids, ignore_eos=rng.random() < 0.5),
        output_tokens=forced,
        cache_salt=rng.choice((b"", b"", b"tenant")),
    )


async def serve_all(pair: Pair, rng: random.Random, requests: list[Request]) -> list[Served]:
    """Serve in two waves, so that the second hits what the first left; some requests stay on D alone."""
    half = len(requests) // 2
    first = await asyncio.gather(*(pair.router.serve(one, alone=rng.random() < 0.2) for one in requests[:half]))
    second = await asyncio.gather(*(pair.router.serve(one, alone=rng.random() < 0.1) for one in requests[half:]))
    return [*first, *second]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_a_pair_answers_as_one_engine_alone(shape: Shape) -> None:
    rng = random.Random(shape.name)
    requests, solo = random_requests(rng, shape), Solo(MODEL)
    async with running_pair(MODEL, shape.prefill(), shape.decode()) as pair:
        served = await serve_all(pair, rng, requests)
        for request, answer in zip(requests, served, strict=True):
            assert (answer.tokens, answer.finish_reason) == solo.answer(request), request
        await pair.settle()
        pair.require_clean()
        require_exercised(shape, pair, served)


def require_exercised(shape: Shape, pair: Pair, served: list[Served]) -> None:
    """Assert that the cases hit what they were made for."""
    handed = [one for one in served if one.prefill]
    assert any(one.granted.cached_tokens for one in handed)
    assert any(one.prefill.cached_tokens for one in handed if one.prefill)
    assert all(one.bill.computed_prompt_tokens == 0 for one in handed) or shape.may_preempt
    rings = [one for one in handed if is_ring(one, shape.prefill_block_tokens)]
    assert bool(rings) == shape.is_ring


def is_ring(served: Served, block_tokens: int) -> bool:
    ticket = served.granted.ticket
    return ticket.extent.num_slots < -(-(ticket.missing.end - ticket.missing.start) // block_tokens)
