"""Who waits on a node is served by priority, time and tenant; who cannot be served in time is told so, where that is wanted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from twostep.core.errors import DeadlineExceeded
from twostep.core.request import Request, ServiceLevel
from twostep.engine.batch import Batch
from twostep.engine.config import SchedulingConfig
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request

pytestmark = pytest.mark.processes

REFUSING = SchedulingConfig(hopeless="refuse")


class Working(Gate):
    """A gate whose clock moves by a millisecond for every token that is computed."""

    clock: ManualClock | None = None

    def __call__(self, batch: Batch) -> None:
        super().__call__(batch)
        if self.clock:
            self.clock.advance(0.001 * batch.num_tokens)


def asking(name: str, num_tokens: int = 60, **level: Any) -> Request:
    return replace(request(name, num_tokens), level=ServiceLevel(**level))


async def until_waiting(pair: Pair, num_waiting: int) -> None:
    while len(pair.decode.queue.waiting) < num_waiting:
        await pair.router.status()


async def test_a_decode_node_grants_by_priority_and_by_tenant() -> None:
    small = replace(DECODE, engine=engine_config(blocks=8, model=MODEL))
    async with running_pair(MODEL, PREFILL, small) as pair:
        await pair.router.grant(asking("holder", 200))
        dear, cheap = asking("high", priority=-1), asking("low", priority=1)
        waiting = [cheap, asking("usual"), asking("more"), asking("other", tenant="t"), dear]
        calls = [pair.router.reserve(one) for one in waiting]
        for number, call in enumerate(calls, 1):
            await call.read()
            await until_waiting(pair, number)
        assert [one.id for one in pair.decode.queue.waiting] == ["high", "other", "usual", "more", "low"]
        for one in (asking("holder"), *waiting):
            await pair.router.cancel(one.id)
        await pair.settle()


async def test_room_that_comes_back_for_one_at_a_time_goes_round_the_tenants() -> None:
    small = replace(DECODE, engine=engine_config(blocks=8, model=MODEL))
    async with running_pair(MODEL, PREFILL, small) as pair:
        granted = [asking("holder", 200)]
        await pair.router.grant(granted[0])
        waiting = {one.id: one for one in (asking(f"first {n}", 200, tenant="s") for n in range(3))}
        waiting |= {one.id: one for one in (asking(f"then {n}", 200, tenant="t") for n in range(2))}
        calls = {}
        for number, (name, one) in enumerate(waiting.items(), 1):
            calls[name] = pair.router.reserve(one)
            await calls[name].read()
            await until_waiting(pair, number)
        order = []
        while calls:
            await pair.router.cancel(granted.pop().id)
            while len(pair.decode.queue.waiting) == len(calls):
                await pair.router.status()
            (name,) = calls.keys() - {one.id for one in pair.decode.queue.waiting}
            await pair.router.grant_from(calls.pop(name))
            granted.append(waiting[name])
            order.append(name)
        assert order == ["first 0", "then 0", "first 1", "then 1", "first 2"]
        await pair.router.cancel(granted.pop().id)
        await pair.settle()


async def test_a_request_that_cannot_be_answered_in_time_is_refused_by_the_node_that_computes_it() -> None:
    gates = (Working(), Working())
    prefill = replace(PREFILL, engine=engine_config(blocks=64, model=MODEL, scheduling=REFUSING))
    decode = replace(DECODE, engine=engine_config(blocks=64, model=MODEL, scheduling=REFUSING))
    async with running_pair(MODEL, prefill, decode, prefill_gate=gates[0], decode_gate=gates[1]) as pair:
        for gate in gates:
            gate.clock = pair.clock
        await pair.router.serve(asking("measured", 100))
        await pair.router.serve(asking("alone", 100), alone=True)
        for alone, gate in ((False, gates[0]), (True, gates[1])):
            gate.close()
            held = asyncio.ensure_future(pair.router.serve(asking(f"held {alone}", 90), alone=alone))
            await asyncio.to_thread(gate.reached.wait)
            late = asking(f"late {alone}", 110)
            granted = await pair.router.grant(late, alone=alone, remaining_s=0.05)
            leg = None if alone else asyncio.ensure_future(pair.router.prefill(late, granted.ticket))
            while not pair.decode.parts.engine.hopeless() and not pair.prefill.parts.engine.hopeless():
                await pair.router.status()
            pair.tick()
            if leg:
                with pytest.raises(DeadlineExceeded):
                    await leg
            await pair.router.answer(late.id).over.wait()
            error = pair.router.answer(late.id).error
            assert isinstance(error, DeadlineExceeded)
            assert not pair.router.answer(late.id).tokens
            gate.open()
            await held
        for node in (pair.prefill, pair.decode):
            assert node.parts.metrics.registry.get_sample_value("twostep_hopeless_total") == 1
        await pair.settle()
        pair.require_clean()
