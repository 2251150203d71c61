"""Brings request `a` into each phase of its life and holds it there."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from twostep.core.errors import Cancelled
from twostep.core.ids import NodeRef, RequestId
from twostep.engine.batch import Batch
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.prefill_node.leg import Phase
from twostep.tests.handoff import computing as standing
from twostep.tests.handoff.gate import LONG_S, Gate
from twostep.tests.handoff.held import hold
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request

A, B = RequestId("a"), RequestId("b")
TIME_S = 8.0
"""What request `a` has until its deadline; `b`, which others wait for, has much longer."""
NUM_TOKENS = 100
SMALL = engine_config(blocks=5, model=MODEL)


@dataclass(frozen=True, slots=True)
class Held:
    """`a` is in its phase until `let_go`. `call` is what the router waits for: D's reservation or P's answer."""

    pair: Pair
    let_go: Callable[[], None]
    call: "asyncio.Future[Any] | None" = None
    is_granted: bool = True


class HeldFabric(LocalFabric):
    """Writes wait while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = threading.Event()
        self.flows.set()

    def write(self, node: NodeRef, copies: list[tuple[int, int, int]], note: bytes) -> bool:
        assert self.flows.wait(LONG_S), "the fabric stayed closed"
        return super().write(node, copies, note)


class UntilPreempted(Gate):
    """Closes when a batch leaves out somebody who was in the one before."""

    def __init__(self) -> None:
        super().__init__()
        self._num_before = 0

    def __call__(self, batch: Batch) -> None:
        if len(batch.chunks) < self._num_before:
            self.close()
        self._num_before = len(batch.chunks)
        super().__call__(batch)


async def reserve(pair: Pair, name: str = "a", *, max_tokens: int = 5, remaining_s: float = TIME_S) -> Any:
    one = request(name, NUM_TOKENS, max_tokens=max_tokens)
    return (await pair.router.grant(one, remaining_s=remaining_s)).ticket


async def prefill(pair: Pair, name: str = "a", **how: Any) -> "asyncio.Future[Any]":
    ticket = await reserve(pair, name, **how)
    one = request(name, NUM_TOKENS, max_tokens=how.get("max_tokens", 5))
    return asyncio.ensure_future(pair.router.prefill(one, ticket))


def nothing() -> None:
    """Hold nothing back."""


@asynccontextmanager
async def queued_on_d() -> AsyncIterator[Held]:
    async with running_pair(MODEL, PREFILL, replace(DECODE, engine=SMALL)) as pair:
        await reserve(pair, "b", remaining_s=600.0)
        waiting = pair.router.reserve(request("a", NUM_TOKENS), remaining_s=TIME_S)
        assert (await waiting.read()).HasField("queued")
        call = asyncio.ensure_future(pair.router.grant_from(waiting))

        def make_room() -> None:
            pair.decode.queue.stop(B, Cancelled("it is in the way"))

        yield Held(pair, make_room, call, is_granted=False)


@asynccontextmanager
async def holding_a_ticket() -> AsyncIterator[Held]:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await reserve(pair)
        yield Held(pair, nothing)


@asynccontextmanager
async def queued_on_p() -> AsyncIterator[Held]:
    gate = Gate()
    async with running_pair(MODEL, replace(PREFILL, engine=SMALL), DECODE, prefill_gate=gate) as pair:
        gate.close()
        await prefill(pair, "b", remaining_s=600.0)
        await reached(gate)
        call = await prefill(pair)
        await in_phase(pair, Phase.QUEUED)
        yield Held(pair, gate.open, call)


@asynccontextmanager
async def computing() -> AsyncIterator[Held]:
    async with standing.computing(remaining_s=TIME_S) as (pair, gate, call):
        yield Held(pair, gate.open, call)


@asynccontextmanager
async def sending() -> AsyncIterator[Held]:
    fabric = HeldFabric()
    async with running_pair(MODEL, PREFILL, DECODE, fabric=fabric) as pair:
        fabric.flows.clear()
        call = await prefill(pair)
        await in_phase(pair, Phase.SENDING)
        yield Held(pair, fabric.flows.set, call)


@asynccontextmanager
async def being_verified() -> AsyncIterator[Held]:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        verdict = hold(pair.decode.parts.receiver, "finish")
        call = await prefill(pair)
        await verdict.called.wait()
        await verdict.resolved()
        yield Held(pair, verdict.let_go, call)


@asynccontextmanager
async def decoding() -> AsyncIterator[Held]:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        await (await prefill(pair))
        await reached(gate)
        yield Held(pair, gate.open)


@asynccontextmanager
async def preempted() -> AsyncIterator[Held]:
    gate = UntilPreempted()
    decode = replace(DECODE, engine=engine_config(blocks=11, model=MODEL))
    async with running_pair(MODEL, PREFILL, decode, decode_gate=gate) as pair:
        gate.close()
        await (await prefill(pair, "b", max_tokens=120, remaining_s=600.0))
        await (await prefill(pair, max_tokens=120))
        await reached(gate)
        gate.reached.clear()
        gate.open()
        await reached(gate)
        assert pair.decode.parts.engine.load().num_waiting == 1
        yield Held(pair, gate.open)


@asynccontextmanager
async def computing_on_a_draining_node() -> AsyncIterator[Held]:
    async with computing() as held:
        draining = [asyncio.ensure_future(node.drain()) for node in (held.pair.prefill, held.pair.decode)]
        yield held
        await asyncio.gather(*draining)


@asynccontextmanager
async def decoding_on_a_draining_node() -> AsyncIterator[Held]:
    async with decoding() as held:
        draining = asyncio.ensure_future(held.pair.decode.drain())
        yield held
        await draining


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, LONG_S), "the engine never came to the gate"


async def in_phase(pair: Pair, phase: Phase) -> None:
    while not any(leg.phase is phase for leg in pair.prefill.legs.of(A)):
        await pair.router.status()
