"""A node that was told to stop: what it still takes, finishes and hands back, and when it is done."""

import asyncio
from dataclasses import replace

import pytest

from twostep.core.errors import NodeDraining
from twostep.node.handoff_messages import Abort
from twostep.tests.handoff.computing import computing
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

SHORT = replace(TIMERS, drain_s=0.05)
"""Time to drain runs on the event loop's own clock."""


async def require_unready(pair: Pair, node: int) -> None:
    assert (await pair.router.status())[node].not_ready_reason == "the node is draining"


async def test_a_decode_node_hands_back_what_its_time_does_not_suffice_for() -> None:
    """What was shown stays true, and the error allows the router to go on elsewhere from there."""
    gate = Gate()
    async with running_pair(MODEL, PREFILL, replace(DECODE, timers=SHORT), decode_gate=gate) as pair:
        one = request("a", 100, max_tokens=1000)
        answer = pair.router.answer("a")
        gate.close()
        granted = await pair.router.grant(one)
        await pair.router.prefill(one, granted.ticket)
        draining = asyncio.ensure_future(pair.decode.drain())
        await answer.over.wait()
        await require_unready(pair, 1)
        assert isinstance(answer.error, NodeDraining)
        assert answer.error.retry_elsewhere
        gate.open()
        await draining
        assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0][: len(answer.tokens)]
        await pair.settle()
        pair.require_clean()


async def test_a_decode_node_out_of_service_finishes_what_runs_and_takes_nothing_until_it_is_put_back() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        granted = await pair.router.grant(request("a", 100))
        await pair.router.prefill(request("a", 100), granted.ticket)
        await asyncio.to_thread(gate.reached.wait)
        pair.decode.control.cordon("new memory")
        with pytest.raises(NodeDraining, match=r"^d\S* is draining$"):
            await pair.router.grant(request("b", 100))
        gate.open()
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(request("a", 100))[0]
        pair.decode.control.cordon("")
        assert (await pair.router.serve(request("b", 100))).tokens == Solo(MODEL).answer(request("b", 100))[0]


async def test_a_prefill_node_out_of_service_finishes_what_runs_and_takes_nothing() -> None:
    """What was reserved before goes elsewhere, too: the decode node keeps its blocks for that."""
    async with computing() as (pair, gate, prefilling):
        other = await pair.router.grant(request("b", 100))
        pair.prefill.control.cordon("new memory")
        with pytest.raises(NodeDraining, match=r"^p\S* is draining$"):
            await pair.router.prefill(request("b", 100), other.ticket)
        gate.open()
        await prefilling
        await pair.router.answer("a").over.wait()
        pair.prefill.control.cordon("")
        again = await pair.router.grant(request("b", 100), attempt=2)
        await pair.router.prefill(request("b", 100), again.ticket)
        answer = pair.router.answer("b", 2)
        await answer.over.wait()
        assert tuple(answer.tokens) == Solo(MODEL).answer(request("b", 100))[0]
        await pair.settle()
        pair.require_clean()


async def test_who_waits_for_a_draining_decode_node_is_sent_elsewhere_at_once() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        await pair.router.grant(request("a", 1200), alone=True)
        await asyncio.to_thread(gate.reached.wait)
        waiting = pair.router.reserve(request("b", 1200), alone=True)
        await waiting.read()
        draining = asyncio.ensure_future(pair.decode.drain())
        with pytest.raises(NodeDraining, match="draining"):
            await pair.router.grant_from(waiting)
        gate.open()
        await draining
        await pair.router.answer("a").over.wait()
        assert pair.router.answer("a").finish_reason == "length"


async def test_a_decode_node_stays_until_its_prefill_nodes_have_stopped_writing() -> None:
    """P is in the middle of a step whose KV it would write next: D waits for its word that it will not."""
    async with computing(decode=replace(DECODE, timers=SHORT)) as (pair, gate, prefilling):
        heard, may_answer = asyncio.Event(), asyncio.Event()
        tell = pair.decode.parts.sources.abort

        async def abort(told: Abort) -> bool:
            heard.set()
            await may_answer.wait()
            return await tell(told)

        pair.decode.parts.sources.abort = abort
        draining = asyncio.ensure_future(pair.decode.drain())
        await heard.wait()
        assert pair.decode.parts.landing.census().draining_bytes > 0
        assert not draining.done()
        may_answer.set()
        await draining
        assert pair.decode.parts.landing.census().free_bytes == pair.decode.parts.landing.census().total_bytes
        assert pair.decode.parts.landing.unproven_reuse == 0
        with pytest.raises(Exception, match="time to drain is over"):
            await prefilling
        gate.open()
        await pair.settle()
        pair.require_clean()


async def test_a_prefill_node_that_does_not_answer_does_not_keep_a_decode_node() -> None:
    config = replace(DECODE, timers=replace(SHORT, call_s=0.02))
    async with computing(decode=config) as (pair, gate, prefilling):

        async def abort(told: Abort) -> bool:
            await asyncio.Event().wait()
            return False

        pair.decode.parts.sources.abort = abort
        await pair.decode.drain()
        assert pair.decode.parts.landing.census().draining_bytes > 0
        gate.open()
        await asyncio.gather(prefilling, return_exceptions=True)


async def test_a_prefill_node_hands_back_what_its_time_does_not_suffice_for() -> None:
    """The decode node hears that no write is in flight, keeps its blocks, and waits for the next attempt."""
    async with computing(prefill=replace(PREFILL, timers=SHORT)) as (pair, gate, prefilling):
        draining = asyncio.ensure_future(pair.prefill.drain())
        with pytest.raises(NodeDraining, match="time to drain is over"):
            await prefilling
        await require_unready(pair, 0)
        await draining
        (handoff,) = pair.decode.parts.handoffs
        assert handoff.loss is not None
        assert handoff.reservation is not None
        await pair.landing_is_free()
        gate.open()
        await pair.router.cancel(request("a", 100).id)
        await pair.settle()
        pair.require_clean()
