"""Every way in which a request can end, in every phase: one last word, and nothing stays behind."""

import asyncio

import pytest

from twostep.core.errors import Cancelled, StaleLeg
from twostep.core.ids import RequestId
from twostep.decode_node.config import DecodeNodeConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.handoff.computing import computing, queued_behind_it
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

SMALL_DECODE = DecodeNodeConfig(engine=engine_config(blocks=5, model=MODEL), landing_bytes=1 << 20)
SMALL_PREFILL = PrefillNodeConfig(engine=engine_config(blocks=5, model=MODEL))
A, B = RequestId("a"), RequestId("b")


async def require_served(pair: Pair, name: str) -> None:
    """Assert that a request is served as if nothing had happened before, and that all accounts are even."""
    one = request(name, 90)
    assert (await pair.router.serve(one)).tokens == Solo(MODEL).answer(one)[0]
    await pair.settle()
    pair.require_clean()


async def test_a_request_that_is_served_leaves_nothing_behind() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await require_served(pair, "a")
        assert pair.router.answer("a").finish_reason == "length"


async def test_a_request_cancelled_while_it_waits_on_d_is_told_so_and_the_next_moves_up() -> None:
    async with running_pair(MODEL, PREFILL, SMALL_DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        waiting = pair.router.reserve(request("b", 100))
        behind = pair.router.reserve(request("c", 100))
        assert (await waiting.read()).queued.position == 0
        assert (await behind.read()).queued.position == 1
        assert await pair.router.cancel(B) == (False, True)
        assert (await behind.read()).queued.position == 0
        with pytest.raises(Cancelled):
            await pair.router.grant_from(waiting)
        await pair.router.prefill(request("a", 100), granted.ticket)
        await pair.router.prefill(request("c", 100), (await pair.router.grant_from(behind)).ticket)
        await pair.router.answer("c").over.wait()
        await pair.settle()
        pair.require_clean()


async def test_closing_the_reservations_stream_gives_the_place_in_the_line_up() -> None:
    async with running_pair(MODEL, PREFILL, SMALL_DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        waiting = pair.router.reserve(request("b", 100))
        assert (await waiting.read()).queued.position == 0
        behind = pair.router.reserve(request("c", 100))
        assert (await behind.read()).queued.position == 1
        waiting.cancel()
        assert (await behind.read()).queued.position == 0
        behind.cancel()
        await pair.router.prefill(request("a", 100), granted.ticket)
        await pair.settle()
        await require_served(pair, "d")


async def test_a_ticket_cancelled_before_its_prefill_is_refused_and_its_landing_space_free_at_once() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        assert await pair.router.cancel(A) == (False, True)
        await pair.settle()
        assert pair.router.answer("a").finish_reason == "cancelled"
        with pytest.raises(StaleLeg):
            await pair.router.prefill(request("a", 100), granted.ticket)
        pair.require_clean()
        assert pair.decode.parts.landing.unproven_reuse == 0


async def test_a_request_cancelled_while_p_computes_is_drained_on_both_sides() -> None:
    async with computing() as (pair, gate, prefill):
        assert (await pair.router.cancel(A))[0]
        while (await pair.router.status())[1].referenced_blocks:
            assert not gate.is_open
        gate.open()
        with pytest.raises(Cancelled):
            await prefill
        await pair.settle()
        assert pair.decode.parts.landing.unproven_reuse == 0
        pair.require_clean()
        await require_served(pair, "b")


async def test_a_request_cancelled_while_it_waits_on_p_never_computes() -> None:
    async with computing(prefill=SMALL_PREFILL) as (pair, gate, first):
        second = await queued_behind_it(pair, "b")
        assert (await pair.router.status())[0].num_waiting == 1
        assert (await pair.router.cancel(B))[0]
        with pytest.raises(Cancelled):
            await second
        gate.open()
        await first
        await pair.router.answer("a").over.wait()
        await pair.settle()
        pair.require_clean()
        assert pair.router.answer("b").tokens == []


async def test_a_request_cancelled_while_it_decodes_frees_its_blocks_when_the_step_ends() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        granted = await pair.router.grant(request("a", 100))
        await pair.router.prefill(request("a", 100), granted.ticket)
        await asyncio.to_thread(gate.reached.wait)
        assert await pair.router.cancel(A) == (False, True)
        await pair.router.answer("a").over.wait()
        assert pair.router.answer("a").finish_reason == "cancelled"
        assert pair.decode.parts.engine.census().referenced > 0
        gate.open()
        await pair.settle()
        pair.require_clean()
        assert pair.router.answer("a").tokens == list(Solo(MODEL).answer(request("a", 100))[0][:1])


async def test_the_second_cancel_of_a_request_changes_nothing() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100), alone=True)
        await pair.router.cancel(A)
        assert await pair.router.cancel(A) == (False, False)
        await pair.settle()
        pair.require_clean()


async def test_a_leg_cancelled_on_p_alone_ends_on_d_too() -> None:
    async with computing() as (pair, gate, prefill):
        assert pair.prefill.legs.stop(A, Cancelled("an operator's whim"))
        with pytest.raises(Cancelled):
            await prefill
        gate.open()
        await pair.router.answer("a").over.wait()
        assert pair.router.answer("a").finish_reason == "cancelled"
        await pair.settle()
        pair.require_clean()
