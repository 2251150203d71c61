"""What breaks, and what the router and the next attempt see of it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from twostep.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFault,
    NodeDraining,
    NodeUnavailable,
    StaleLeg,
    TransferFailed,
    TransferTimeout,
)
from twostep.core.ids import NodeRef, RequestId, new_incarnation
from twostep.core.request import Request
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.computing import computing, queued_behind_it
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

A = RequestId("a")
# The decode node's abort cancels a leg; a later attempt, or the answer to the leg's own message, makes it stale. They cross:
# whichever comes first ends it.
CROSSING = (Cancelled, StaleLeg)
SMALL_PREFILL = PrefillNodeConfig(timers=TIMERS, engine=engine_config(blocks=5, model=MODEL))


async def granted(pair: Pair, name: str, **how: Any) -> tuple[Request, pb.Ticket]:
    one = request(name, 100)
    return one, (await pair.router.grant(one, **how)).ticket


async def attempt(pair: Pair, number: int, **how: Any) -> pb.PrefillReply:
    """Reserve and prefill request `a` once."""
    return await pair.router.prefill(*await granted(pair, "a", attempt=number, **how))


async def tick_until(pair: Pair, event: asyncio.Event) -> None:
    """Let time pass second by second, and messages be delivered, until `event` is set."""
    for _ in range(100):
        pair.tick(advance_s=1.0)
        await deliver(pair)
        if event.is_set():
            return
    raise AssertionError("100 s went by in vain")


async def deliver(pair: Pair) -> None:
    """Make as many round trips as there are messages in a row: what was sent before has arrived, however slow this machine."""
    for _ in range(4):
        await pair.router.status()


def held_blocks(pair: Pair) -> tuple[int, ...]:
    handoff = pair.decode.parts.handoffs.find(A)
    assert handoff is not None
    assert handoff.reservation is not None
    return handoff.reservation.table


async def test_a_prefill_node_that_stands_still_is_reported_within_the_progress_deadline() -> None:
    async with computing() as (pair, gate, prefill):
        began = pair.clock.now
        await tick_until(pair, pair.router.answer("a").over)
        assert pair.clock.now < began + 1.5 * TIMERS.progress_s
        answer = pair.router.answer("a")
        assert isinstance(answer.error, TransferTimeout)
        assert answer.error.retry_elsewhere
        blocks = held_blocks(pair)
        one, ticket = await granted(pair, "a", attempt=2)
        assert held_blocks(pair) == blocks
        second = asyncio.ensure_future(pair.router.prefill(one, ticket))
        with pytest.raises(CROSSING):
            await prefill
        gate.open()
        await second
        await pair.router.answer("a", 2).over.wait()
        assert tuple(pair.router.answer("a", 2).tokens) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()


async def test_a_prefill_node_that_falls_silent_is_given_up_when_that_is_due_and_not_a_tick_later() -> None:
    async with computing() as (pair, gate, prefill):
        pair.tick(advance_s=TIMERS.tell_s)
        await deliver(pair)
        for _ in range(int(TIMERS.silence_s)):
            assert pair.decode.tick() == TIMERS.tick_s
            pair.clock.advance(0.996)
        left_s = pair.decode.tick()
        assert left_s == pytest.approx(0.1)
        assert pair.decode.parts.handoffs.find(A)
        pair.clock.advance(left_s)
        pair.decode.tick()
        await pair.router.answer("a").over.wait()
        assert isinstance(pair.router.answer("a").error, TransferTimeout)
        gate.open()
        with pytest.raises(CROSSING):
            await prefill
        assert held_blocks(pair)
        pair.tick(advance_s=TIMERS.retry_s)
        await pair.settle()
        pair.require_clean()


async def test_queueing_behind_others_is_progress() -> None:
    async with computing(prefill=SMALL_PREFILL) as (pair, gate, first):
        second = await queued_behind_it(pair, "b")
        await tick_until(pair, pair.router.answer("a").over)
        assert not pair.router.answer("b").over.is_set()
        gate.open()
        await pair.router.answer("b").over.wait()
        assert pair.router.answer("b").finish_reason == "length"
        await asyncio.gather(first, second, return_exceptions=True)
        pair.tick(advance_s=TIMERS.retry_s)
        await pair.settle()
        pair.require_clean()


async def test_a_leg_that_p_gives_up_leaves_the_blocks_for_the_next_attempt() -> None:
    async with computing() as (pair, gate, prefill):
        pair.prefill.legs.stop(A, NodeUnavailable("this node must go"))
        with pytest.raises(NodeUnavailable):
            await prefill
        gate.open()
        blocks = held_blocks(pair)
        one, ticket = await granted(pair, "a", attempt=2)
        assert held_blocks(pair) == blocks
        await pair.router.prefill(one, ticket)
        answer = pair.router.answer("a", 2)
        await answer.over.wait()
        assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()


async def test_the_bill_of_a_new_attempt_begins_with_its_own_reservation() -> None:
    async with computing() as (pair, gate, prefill):
        pair.tick(advance_s=2.0)
        pair.prefill.legs.stop(A, NodeUnavailable("this node must go"))
        with pytest.raises(NodeUnavailable):
            await prefill
        gate.open()
        await attempt(pair, 2)
        answer = pair.router.answer("a", 2)
        await answer.over.wait()
        assert answer.bill is not None
        assert answer.bill.queue_s == 0.0


async def test_blocks_that_no_attempt_comes_for_are_freed_and_the_failure_is_reported() -> None:
    async with computing() as (pair, gate, prefill):
        pair.prefill.legs.stop(A, NodeUnavailable("this node must go"))
        with pytest.raises(NodeUnavailable):
            await prefill
        gate.open()
        await tick_until(pair, pair.router.answer("a").over)
        assert isinstance(pair.router.answer("a").error, NodeUnavailable)
        await pair.settle()
        pair.require_clean()


async def test_a_new_attempt_while_p_still_computes_the_old_one_takes_its_place() -> None:
    async with computing() as (pair, gate, first):
        second = asyncio.ensure_future(attempt(pair, 2))
        with pytest.raises(CROSSING):
            await first
        gate.open()
        await second
        answer = pair.router.answer("a", 2)
        await answer.over.wait()
        assert tuple(answer.tokens) == Solo(MODEL).answer(request("a", 100))[0]
        assert pair.router.answer("a", 1).tokens == []
        await pair.settle()
        pair.require_clean()


async def test_a_prefill_node_that_was_started_anew_ends_what_its_earlier_life_was_sending() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await granted(pair, "a")
        before = pair.prefill.parts.node
        hello = replace(pair.prefill.parts.peers._hello, node=NodeRef(before.id, new_incarnation()))
        pair.decode.answer_hello(hello)
        assert held_blocks(pair)
        with pytest.raises(TransferFailed):
            await granted(pair, "b")
        await tick_until(pair, pair.router.answer("a").over)
        assert isinstance(pair.router.answer("a").error, NodeUnavailable)


async def test_a_request_that_runs_out_of_time_ends_on_both_nodes() -> None:
    async with computing(remaining_s=5.0) as (pair, gate, prefill):
        pair.tick(advance_s=5.1)
        await pair.router.answer("a").over.wait()
        assert isinstance(pair.router.answer("a").error, DeadlineExceeded)
        with pytest.raises((DeadlineExceeded, Cancelled)):
            await prefill
        gate.open()
        await pair.settle()
        pair.require_clean()


async def test_requests_of_a_router_that_fell_silent_end_on_both_nodes() -> None:
    async with computing() as (pair, gate, prefill):
        assert await pair.router.heartbeat(1, A, RequestId("ghost"), lease_s=3.0) == (["ghost"], ["ghost"])
        pair.tick(advance_s=2.9)
        assert A in [handoff.id for handoff in pair.decode.parts.handoffs]
        pair.tick(advance_s=0.2)
        with pytest.raises(Cancelled):
            await prefill
        gate.open()
        await pair.settle()
        pair.require_clean()


async def test_a_request_that_two_heartbeats_leave_out_ends() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await granted(pair, "a")
        await pair.router.heartbeat(1)
        assert A in [handoff.id for handoff in pair.decode.parts.handoffs]
        await pair.router.heartbeat(2)
        await pair.router.answer("a").over.wait()
        assert pair.router.answer("a").finish_reason == "cancelled"


async def test_a_draining_decode_node_admits_nothing_and_finishes_what_runs() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        one, ticket = await granted(pair, "a")
        await pair.router.prefill(one, ticket)
        draining = asyncio.ensure_future(pair.decode.drain())
        await asyncio.to_thread(gate.reached.wait)
        with pytest.raises(NodeDraining, match="draining"):
            await granted(pair, "b")
        assert (await pair.router.status())[1].not_ready_reason == "the node is draining"
        assert not draining.done()
        gate.open()
        await draining
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(one)[0]
        pair.require_clean()


async def test_a_draining_prefill_node_admits_nothing_and_finishes_what_runs() -> None:
    async with computing() as (pair, gate, prefill):
        other = await granted(pair, "b")
        draining = asyncio.ensure_future(pair.prefill.drain())
        with pytest.raises(NodeDraining, match="draining"):
            await pair.router.prefill(*other)
        gate.open()
        await prefill
        await draining
        await pair.router.cancel(RequestId("b"))


async def test_an_engine_that_dies_ends_its_requests_and_takes_the_node_down() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await lose_decode_engine()
    assert raised.group_contains(EngineFault, match="the device is gone")


async def lose_decode_engine() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.fail(EngineFault("the device is gone"))
        await pair.router.prefill(*await granted(pair, "a"))
        await pair.router.answer("a").over.wait()
        assert isinstance(pair.router.answer("a").error, EngineFault)
        await asyncio.Event().wait()
