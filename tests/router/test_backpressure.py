"""A client that takes nothing holds its own request at the decode node, which goes on when it reads again."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules
from twostep.router.bill import Intake
from twostep.router.config import RouterConfig
from twostep.router.discovery.static import StaticDiscovery
from twostep.router.dispatch import Dispatcher
from twostep.router.metrics import Metrics
from twostep.router.node_pool import NodePool
from twostep.tests.router.cluster import until
from twostep.tests.router.fake_nodes import FakeDecode, FakePrefill

pytestmark = pytest.mark.processes

NUM_TOKENS = 40
BOUND = 32


@asynccontextmanager
async def dispatching() -> AsyncIterator[tuple[FakeDecode, Dispatcher]]:
    """Yield a decode node, and a dispatcher that may use it."""
    decode = FakeDecode("d")
    prefill = FakePrefill("p", [decode])
    for node in (decode, prefill):
        await node.start()
    config = RouterConfig(prefill=(prefill.address,), decode=(decode.address,), max_buffered_tokens=BOUND, lease_s=60.0)
    async with NodePool(config, StaticDiscovery(config.prefill, config.decode), clock=time.monotonic) as pool:

        async def is_ready() -> bool:
            return pool.fleet.has_pair()

        await until(is_ready)
        yield decode, Dispatcher(pool, config, Metrics())
    for node in (decode, prefill):
        await node.stop()


async def test_a_request_whose_client_takes_nothing_is_held_until_it_does() -> None:
    async with dispatching() as (decode, dispatcher):
        began, may_go_on, taken = asyncio.Event(), asyncio.Event(), list[int]()

        async def on_tokens(tokens: Sequence[int]) -> bool:
            began.set()
            await may_go_on.wait()
            taken.extend(tokens)
            return True

        request = Request(RequestId("slow"), (1, 2), SamplingParams(0), StopRules(NUM_TOKENS))
        decode.answer = lambda asked, attempt: decode.emit(asked.id, attempt, [7])  # type: ignore[method-assign]
        now = asyncio.get_running_loop().time()
        run = asyncio.create_task(dispatcher.run(request, on_tokens, intake=Intake(now), timeout_s=30.0))
        await began.wait()
        decode.emit("slow", 1, [7] * 20, first=1)

        async def is_held() -> bool:
            return list(decode.seen.beats[-1].held) == ["slow"]

        async def is_held_no_more() -> bool:
            return list(decode.seen.beats[-1].held) == []

        await until(is_held)
        may_go_on.set()
        await until(is_held_no_more)
        decode.emit("slow", 1, [7] * (NUM_TOKENS - 21), first=21)
        decode.finish("slow", 1)
        assert (await run).finish is FinishReason.LENGTH
        assert len(taken) == NUM_TOKENS
