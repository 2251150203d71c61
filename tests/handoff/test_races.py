"""Things that happen while something else has not ended yet. Each test holds one step of the way and lets another overtake."""

import asyncio
from typing import Any

import pytest

from twostep.core.errors import Cancelled, NodeUnavailable, QueueFull, ServingError
from twostep.core.ids import RequestId
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.node.handoff_messages import Abort, Outcome
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.tests.handoff.computing import computing, queued_behind_it
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.held import hold
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

A = RequestId("a")
FULL_PREFILL = PrefillNodeConfig(timers=TIMERS, engine=engine_config(blocks=5, model=MODEL), max_queued=1)


async def start_prefill(pair: Pair, attempt: int = 1) -> "asyncio.Task[Any]":
    granted = await pair.router.grant(request("a", 100), attempt=attempt)
    return asyncio.ensure_future(pair.router.prefill(request("a", 100), granted.ticket))


async def test_a_cancel_that_overtakes_the_verdict_wins() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        verdict = hold(pair.decode.parts.receiver, "finish")
        prefill = await start_prefill(pair)
        await verdict.called.wait()
        await verdict.resolved()
        pair.decode.queue.stop(A, Cancelled("the client has gone"))
        verdict.let_go()
        with pytest.raises(ServingError):
            await prefill
        await pair.settle()
        pair.require_clean()
        assert pair.router.answer("a").tokens == []


async def test_a_cancel_that_comes_between_a_done_and_its_verification_wins() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        legs = pair.decode.legs
        answer = legs.done

        async def overtaken(done: Any) -> Any:
            answering = asyncio.ensure_future(answer(done))
            asyncio.get_running_loop().call_soon(pair.decode.queue.stop, A, Cancelled("the client has gone"))
            said.append(await answering)
            return said[0]

        said: list[Any] = []
        legs.done = overtaken  # type: ignore[method-assign]
        granted = await pair.router.grant(request("a", 100, max_tokens=1))
        with pytest.raises(ServingError):
            await pair.router.prefill(request("a", 100, max_tokens=1), granted.ticket)
        assert [one.outcome for one in said] == [Outcome.ENDED]
        await pair.settle()
        pair.require_clean()
        assert pair.router.answer("a").tokens == []


async def test_a_done_that_comes_while_the_first_is_verified_waits_for_the_same_verdict() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        verdict = hold(pair.decode.parts.receiver, "finish")
        said: list[Any] = []
        legs = pair.decode.legs
        answer = legs.done

        async def listen(done: Any) -> Any:
            said.append(done)
            return await answer(done)

        legs.done = listen  # type: ignore[method-assign]
        prefill = await start_prefill(pair)
        await verdict.called.wait()
        second = asyncio.ensure_future(answer(said[0]))
        await asyncio.sleep(0)
        verdict.let_go()
        assert (await second).outcome is Outcome.ATTACHED
        await prefill
        assert verdict.num_calls == 1
        await pair.router.answer("a").over.wait()
        await pair.settle()
        pair.require_clean()


async def test_blocks_are_not_freed_while_a_copy_into_them_may_be_running() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, prefill_gate=gate) as pair:
        gate.close()
        prefill = await start_prefill(pair)
        copies = hold(pair.decode.parts.receiver, "forget")
        await pair.router.cancel(A)
        with pytest.raises(Cancelled):
            await prefill
        await copies.called.wait()
        assert pair.decode.parts.engine.census().referenced == 5
        copies.let_go()
        gate.open()
        await pair.settle()
        pair.require_clean()


async def test_a_new_attempt_gets_no_ticket_while_a_copy_of_the_old_one_may_be_running() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, prefill_gate=gate) as pair:
        gate.close()
        first = await start_prefill(pair)
        copies = hold(pair.decode.parts.receiver, "forget")
        second = pair.router.reserve(request("a", 100), attempt=2)
        assert (await second.read()).HasField("queued")
        handoff = pair.decode.parts.handoffs.find(A)
        assert handoff is not None
        assert (handoff.state, handoff.granted) == (HandoffState.RESERVED, None)
        copies.let_go()
        granted = await pair.router.grant_from(second)
        gate.open()
        await pair.router.prefill(request("a", 100), granted.ticket)
        await asyncio.gather(first, return_exceptions=True)
        copies.let_go()
        await pair.router.answer("a", 2).over.wait()
        assert tuple(pair.router.answer("a", 2).tokens) == Solo(MODEL).answer(request("a", 100))[0]


async def test_the_same_id_waits_until_its_earlier_holder_has_left() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        copies = hold(pair.decode.parts.receiver, "forget")
        await pair.router.cancel(A)
        again = pair.router.reserve(request("a", 100), attempt=2)
        assert (await again.read()).queued.position == 0
        copies.let_go()
        granted = await pair.router.grant_from(again)
        await pair.router.prefill(request("a", 100), granted.ticket)
        await copies.called.wait()
        copies.let_go()
        await pair.router.answer("a", 2).over.wait()


async def test_who_waits_for_its_earlier_holder_and_ends_frees_nothing_of_it() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        copies = hold(pair.decode.parts.receiver, "forget")
        await pair.router.cancel(A)
        again = pair.router.reserve(request("a", 100), attempt=2)
        assert (await again.read()).HasField("queued")
        await pair.router.cancel(A)
        assert pair.decode.parts.engine.census().referenced == 5
        third = pair.router.reserve(request("a", 100), attempt=3)
        assert (await third.read()).HasField("queued")
        copies.let_go()
        granted = await pair.router.grant_from(third)
        await pair.router.prefill(request("a", 100), granted.ticket)
        await pair.router.answer("a", 3).over.wait()
        copies.let_go()
        await pair.settle()
        pair.require_clean()


@pytest.mark.parametrize("has_ended", [False, True])
async def test_the_wait_for_an_earlier_attempts_copy_has_an_end_after_which_another_node_may_help(has_ended: bool) -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        copies = hold(pair.decode.parts.receiver, "forget")
        if has_ended:
            await pair.router.cancel(A)
        again = pair.router.reserve(request("a", 100), attempt=2)
        assert (await again.read()).HasField("queued")
        pair.tick(advance_s=TIMERS.progress_s)
        with pytest.raises(NodeUnavailable, match="a copy of an earlier attempt into its blocks has not ended in 30 s") as told:
            await pair.router.grant_from(again)
        assert told.value.retry_elsewhere
        assert pair.decode.parts.engine.census().referenced == 5
        copies.let_go()
        pair.tick(advance_s=TIMERS.landing_cooldown_s)
        await pair.settle()
        pair.require_clean()


async def test_a_later_attempt_on_the_same_prefill_node_waits_for_the_earlier_ones_blocks() -> None:
    async with computing() as (pair, gate, first):
        unheard = asyncio.Event()

        async def abort(abort: Abort) -> bool:
            await unheard.wait()
            return True

        pair.decode.parts.sources.abort = abort  # type: ignore[method-assign]
        second = await start_prefill(pair, attempt=2)
        with pytest.raises(ServingError, match="attempt 2 has come"):
            await first
        gate.open()
        await second
        unheard.set()
        await pair.router.answer("a", 2).over.wait()
        await pair.settle()
        pair.require_clean()


async def test_one_more_than_ps_queue_holds_is_refused() -> None:
    async with computing(prefill=FULL_PREFILL) as (pair, gate, first):
        second = await queued_behind_it(pair, "b")
        granted = await pair.router.grant(request("c", 100))
        with pytest.raises(QueueFull, match="1 requests wait"):
            await pair.router.prefill(request("c", 100), granted.ticket)
        gate.open()
        await asyncio.gather(first, second)
        await pair.router.cancel(RequestId("c"))
        await pair.settle()
        pair.require_clean()
