"""Requests and node configurations for tests that look at one thing at a time."""

from dataclasses import replace

from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.fake_runner import FakeModel
from twostep.node.config import Timers
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.handoff.pair import engine_config

MODEL = FakeModel()
TIMERS = Timers(lease_s=1000.0)
"""A router that sends no heartbeat lives long enough for every other timer to be seen."""
PREFILL = PrefillNodeConfig(timers=TIMERS, engine=engine_config(blocks=64, model=MODEL))
DECODE = DecodeNodeConfig(timers=TIMERS, engine=engine_config(blocks=64, model=MODEL), landing_bytes=1 << 20)
BLOCK_BYTES = 32 * MODEL.num_layers * MODEL.num_kv_heads * 2 * MODEL.head_dim * 4
RING = replace(DECODE, landing_bytes=8 * BLOCK_BYTES, landing_share=0.25)
"""Its landing space has two slots for a request: longer prompts pass through as through a ring."""


def request(name: str, num_tokens: int, *, max_tokens: int = 5) -> Request:
    """A greedy request whose prompt depends on its name and length; it never meets a stop token."""
    first = sum(map(ord, name))
    prompt = tuple((7 * i + first + num_tokens) % MODEL.vocab_size for i in range(num_tokens))
    return Request(RequestId(name), prompt, SamplingParams(seed=1, temperature=0.0), StopRules(max_tokens=max_tokens))
