"""Who gets memory on a decode node, and what those are told who have to wait."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from twostep.core.errors import DeadlineExceeded, PromptTooLong
from twostep.core.ids import RequestId
from twostep.core.request import FinishReason, Request
from twostep.decode_node.config import DecodeNodeConfig
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.gate import PATIENCE_S
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

BLOCK_BYTES = 32 * MODEL.num_layers * MODEL.num_kv_heads * 2 * MODEL.head_dim * 4


def decode_config(blocks: int, *, max_batch: int = 32, **knobs: Any) -> DecodeNodeConfig:
    """A decode node whose KV cache may all be held by requests that still wait for their KV."""
    engine = engine_config(blocks=blocks, model=MODEL, max_batch=max_batch)
    settings = {"landing_bytes": 1 << 20, "landing_share": 1.0, "unattached_share": 1.0, "pair_bytes": 1 << 20, **knobs}
    return DecodeNodeConfig(timers=TIMERS, engine=engine, **settings)


async def queued(reservation: Any) -> pb.Queued:
    """Read one event, which has to be a place in the queue."""
    event = await reservation.read()
    assert event.HasField("queued"), event
    place: pb.Queued = event.queued
    return place


async def finish(pair: Pair, one: Request, granted: pb.Granted) -> None:
    """See a granted request through and compare its answer."""
    await pair.router.prefill(one, granted.ticket)
    answer = pair.router.answer(one.id)
    await answer.over.wait()
    assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0]


async def require_empty(pair: Pair) -> None:
    """Assert that nothing is held once the landing space of tickets that never were used has rested."""
    await pair.settle()
    pair.tick(advance_s=TIMERS.landing_cooldown_s)
    pair.require_clean()


async def test_of_two_requests_that_need_most_of_the_pool_one_waits_and_what_needs_more_is_refused() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(10)) as pair:
        first, second = request("first", 160), request("second", 160)
        granted = await pair.router.grant(first)
        waiting = pair.router.reserve(second)
        assert (await queued(waiting)).position == 0
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PromptTooLong, match=r"352 tokens, this node takes at most 288"):
                await pair.router.grant(request("never", 352))
        await finish(pair, first, granted)
        await finish(pair, second, await pair.router.grant_from(waiting))
        await require_empty(pair)


@pytest.mark.parametrize(("blocks", "both"), [(11, False), (12, True)])
async def test_a_pool_one_block_short_of_two_parked_requests_takes_one(blocks: int, both: bool) -> None:
    """Each needs four blocks for its prompt, one for its lookahead and one to decode into."""
    async with running_pair(MODEL, PREFILL, decode_config(blocks, lookahead_tokens=32)) as pair:
        first, second = request("first", 128), request("second", 128)
        granted = await pair.router.grant(first)
        reservation = pair.router.reserve(second)
        if not both:
            assert (await queued(reservation)).position == 0
        else:
            assert await pair.router.grant_from(reservation)
            await pair.router.cancel(second.id)
        await finish(pair, first, granted)
        if not both:
            await finish(pair, second, await pair.router.grant_from(reservation))
        await require_empty(pair)


async def test_a_burst_of_four_times_the_window_is_served_whole() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(64, max_batch=4)) as pair:
        burst = [request(f"request {number}", 40 + number) for number in range(16)]
        served = await asyncio.gather(*(pair.router.serve(one) for one in burst))
        assert [one.tokens for one in served] == [Solo(MODEL).answer(one)[0] for one in burst]
        await require_empty(pair)


async def test_an_answer_without_end_stops_where_the_memory_does() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(5)) as pair:
        endless = request("endless", 100, max_tokens=10_000)
        endless = replace(endless, stop=replace(endless.stop, ignore_eos=True))
        served = await pair.router.serve(endless)
        assert served.finish_reason == FinishReason.LENGTH
        assert len(served.tokens) == 5 * 32 - 100
        await require_empty(pair)


async def test_an_answer_that_finds_no_memory_ends_at_its_deadline() -> None:
    """A reservation whose prefill never comes holds the rest of the pool."""
    async with running_pair(MODEL, PREFILL, decode_config(8)) as pair:
        await pair.router.grant(request("parked", 100))
        await pair.router.grant(request("endless", 40, max_tokens=10_000), alone=True, remaining_s=20.0)
        while (await pair.router.status())[1].num_waiting != 2:  # noqa: ASYNC110 - the node is asked over gRPC
            await asyncio.sleep(0.001)
        pair.tick(advance_s=21.0)
        answer = pair.router.answer("endless")
        await answer.over.wait()
        assert isinstance(answer.error, DeadlineExceeded)
        await pair.router.cancel(RequestId("parked"))
        await require_empty(pair)


async def test_a_request_waits_for_longer_than_a_lease_because_heartbeats_list_it() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(5)) as pair:
        holder, waiting = request("holder", 100), request("waiting", 100)
        granted = await pair.router.grant(holder)
        reservation = pair.router.reserve(waiting)
        await queued(reservation)
        for sequence in range(1, 8):
            await pair.router.heartbeat(sequence, holder.id, waiting.id, lease_s=3.0)
            pair.tick(advance_s=1.5)
        await finish(pair, holder, granted)
        await finish(pair, waiting, await pair.router.grant_from(reservation))
        await require_empty(pair)


async def test_a_request_that_heartbeats_no_longer_list_leaves_the_queue() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(5)) as pair:
        holder = request("holder", 100)
        granted = await pair.router.grant(holder)
        reservation = pair.router.reserve(request("forgotten", 100))
        await queued(reservation)
        for sequence in (1, 2):
            await pair.router.heartbeat(sequence, holder.id)
        assert len(pair.decode.queue.waiting) == 0
        await finish(pair, holder, granted)
        await require_empty(pair)


async def test_one_prefill_node_does_not_take_the_whole_landing_pool() -> None:
    config = decode_config(64, pair_bytes=7 * BLOCK_BYTES)
    async with running_pair(MODEL, PREFILL, config) as pair:
        first, second = request("first", 100), request("second", 100)
        granted = await pair.router.grant(first)
        waiting = pair.router.reserve(second)
        await queued(waiting)
        await pair.router.serve(request("alone", 100), alone=True)
        assert pair.decode.parts.metrics.preallocation_failures.labels("pair")._value.get() == 1
        await finish(pair, first, granted)
        await finish(pair, second, await pair.router.grant_from(waiting))
        await require_empty(pair)


async def test_what_waits_for_its_pairs_share_is_not_passed_by_others_of_the_pair() -> None:
    """Nobody would count how often: a big one could wait for as long as small ones come."""
    config = decode_config(64, pair_bytes=7 * BLOCK_BYTES)
    async with running_pair(MODEL, PREFILL, config) as pair:
        holder, big, small = request("holder", 100), request("big", 200), request("small", 40)
        granted = await pair.router.grant(holder)
        waiting = [pair.router.reserve(one) for one in (big, small)]
        assert [(await queued(one)).position for one in waiting] == [0, 1]
        await finish(pair, holder, granted)
        granted = await pair.router.grant_from(waiting[0])
        assert pair.decode.queue.waiting_tokens() == [40]
        await finish(pair, big, granted)
        await finish(pair, small, await pair.router.grant_from(waiting[1]))
        await require_empty(pair)


async def test_a_handoff_larger_than_a_pairs_share_goes_alone() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(64, pair_bytes=BLOCK_BYTES)) as pair:
        one = request("one", 100)
        await finish(pair, one, await pair.router.grant(one))
        await require_empty(pair)


async def test_requests_without_their_kv_hold_a_share_of_the_pool_at_most() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(20, unattached_share=0.5)) as pair:
        parked = [request(name, 100) for name in ("a", "b")]
        granted = [await pair.router.grant(one) for one in parked]
        over = request("over", 10)
        waiting = pair.router.reserve(over)
        await queued(waiting)
        await pair.router.serve(request("alone", 10), alone=True)
        await finish(pair, parked[0], granted[0])
        await finish(pair, over, await pair.router.grant_from(waiting))
        await finish(pair, parked[1], granted[1])
        await require_empty(pair)


async def test_a_request_near_the_longest_sequence_counts_with_the_blocks_that_it_takes() -> None:
    engine = engine_config(blocks=8, model=MODEL, max_model_tokens=128)
    async with running_pair(MODEL, PREFILL, replace(decode_config(8), engine=engine)) as pair:
        both = [request(name, 120) for name in ("a", "b")]
        granted = [await pair.router.grant(one) for one in both]
        for one, ticket in zip(both, granted, strict=True):
            await finish(pair, one, ticket)
        await require_empty(pair)


async def test_small_requests_pass_a_big_one_a_bounded_number_of_times() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(12, max_bypasses=2)) as pair:
        holder, big = request("holder", 128), request("big", 300)
        granted = await pair.router.grant(holder)
        waiting = pair.router.reserve(big)
        await queued(waiting)
        for name in ("small", "smaller"):
            await pair.router.serve(request(name, 10))
        third = pair.router.reserve(request("third", 10))
        assert (await queued(third)).position == 1
        assert pair.decode.parts.metrics.queue_bypasses._value.get() == 2
        await finish(pair, holder, granted)
        await finish(pair, big, await pair.router.grant_from(waiting))
        await finish(pair, request("third", 10), await pair.router.grant_from(third))
        await require_empty(pair)


async def test_the_estimate_is_the_pace_at_which_memory_came_back() -> None:
    async with running_pair(MODEL, PREFILL, decode_config(5)) as pair:
        first, second = request("first", 100), request("second", 100)
        granted = await pair.router.grant(first)
        waiting = [pair.router.reserve(second), pair.router.reserve(request("third", 100))]
        assert [(await queued(one)).HasField("estimate_s") for one in waiting] == [False, False]
        pair.tick(advance_s=4.0)
        await finish(pair, first, granted)
        granted = await pair.router.grant_from(waiting[0])
        place = await queued(waiting[1])
        assert (place.position, place.estimate_s) == (0, 4.0)
        await finish(pair, second, granted)
        await finish(pair, request("third", 100), await pair.router.grant_from(waiting[1]))
        await require_empty(pair)


async def test_waiting_for_landing_space_costs_no_cached_block() -> None:
    config = decode_config(14, landing_bytes=5 * BLOCK_BYTES, pair_bytes=5 * BLOCK_BYTES)
    async with running_pair(MODEL, PREFILL, config) as pair:
        await pair.router.serve(request("cached", 128), alone=True)
        parked, waiting = request("parked", 100), request("waiting", 128)
        granted = await pair.router.grant(parked)
        cached = pair.decode.parts.engine.census().cached
        reservation = pair.router.reserve(waiting)
        await queued(reservation)
        assert pair.decode.parts.engine.census().cached == cached
        await finish(pair, parked, granted)
        await finish(pair, waiting, await pair.router.grant_from(reservation))
        await require_empty(pair)
