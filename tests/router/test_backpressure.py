"""A client that takes nothing holds its own request at the decode node, which goes on when it reads again; one that fails ends
its own request alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules
from twostep.proto import node_pb2 as pb
from twostep.router.bill import Intake
from twostep.router.config import RouterConfig
from twostep.router.discovery.static import StaticDiscovery
from twostep.router.metrics import Metrics
from twostep.router.nodes.pool import NodePool
from twostep.router.requests.dispatch import Dispatcher
from twostep.tests.router.cluster import until
from twostep.tests.router.fake_nodes import FakeDecode, FakePrefill
from twostep.tests.router.token_sinks import AtOnce

pytestmark = pytest.mark.processes

NUM_TOKENS = 40
BOUND = 32


class SlowClient:
    """A TokenSink that takes nothing until it is told to."""

    is_satisfied = False

    def __init__(self) -> None:
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.taken: list[int] = []
        self._put: list[int] = []

    def put(self, tokens: Sequence[int]) -> bool:
        self._put.extend(tokens)
        return False

    async def settle(self) -> None:
        self.began.set()
        await self.may_go_on.wait()
        self.taken += self._put
        self._put.clear()


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
        slow = SlowClient()
        request = Request(RequestId("slow"), (1, 2), SamplingParams(0), StopRules(NUM_TOKENS))
        decode.answer = lambda asked, attempt: decode.emit(asked.id, attempt, [7])  # type: ignore[method-assign]
        now = asyncio.get_running_loop().time()
        run = asyncio.create_task(dispatcher.run(request, slow, intake=Intake(now), timeout_s=30.0))
        await slow.began.wait()
        decode.emit("slow", 1, [7] * 20, first=1)

        async def is_held() -> bool:
            return list(decode.seen.beats[-1].held) == ["slow"]

        async def is_held_no_more() -> bool:
            return list(decode.seen.beats[-1].held) == []

        await until(is_held)
        slow.may_go_on.set()
        await until(is_held_no_more)
        decode.emit("slow", 1, [7] * (NUM_TOKENS - 21), first=21)
        decode.finish("slow", 1)
        assert (await run).finish is FinishReason.LENGTH
        assert len(slow.taken) == NUM_TOKENS


async def test_a_request_whose_tokens_cannot_be_told_fails_alone() -> None:
    async with dispatching() as (decode, dispatcher):
        computed: list[str] = []
        decode.answer = lambda asked, attempt: computed.append(asked.id)  # type: ignore[method-assign]
        now = asyncio.get_running_loop().time()

        def fail(tokens: Sequence[int]) -> bool:
            raise LookupError(f"no text for {tokens}")

        told: list[int] = []
        sinks = {"bad": AtOnce(fail), "good": AtOnce(lambda tokens: told.extend(tokens) or True)}
        runs = [
            asyncio.create_task(
                dispatcher.run(
                    Request(RequestId(name), (1, 2), SamplingParams(0), StopRules(2)), sink, intake=Intake(now), timeout_s=30.0
                )
            )
            for name, sink in sinks.items()
        ]

        async def are_computed() -> bool:
            return len(computed) == 2

        await until(are_computed)
        decode.send(pb.TokenBatch(tokens=[pb.Token(request=name, attempt=1, index=0, token=7) for name in sinks]))
        with pytest.raises(LookupError, match="no text for"):
            await runs[0]
        decode.send(pb.TokenBatch(tokens=[pb.Token(request="good", attempt=1, index=1, token=8)]))
        decode.finish("good", 1)
        assert (await runs[1]).finish is FinishReason.LENGTH
        assert told == [7, 8]
