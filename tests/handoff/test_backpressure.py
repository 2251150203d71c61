"""A request whose tokens nobody takes pauses with its KV and ends in time, while its neighbours notice nothing."""

from dataclasses import replace

import pytest

from twostep.core.errors import SlowConsumer
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.mini_router import NAME
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

LONG = 1500


async def hold(pair: Pair, sequence: int, *held: str, living: tuple[str, ...]) -> None:
    beat = pb.HeartbeatRequest(router=NAME, sequence=sequence, lease_s=1000.0, live=living, held=held)
    await pair.router.decode_node.node.Heartbeat(beat)


async def begin(pair: Pair, name: str, *, max_tokens: int) -> None:
    one = request(name, 60, max_tokens=max_tokens)
    await pair.router.prefill(one, (await pair.router.grant(one, remaining_s=600.0)).ticket)
    await pair.router.answer(name).first.wait()


def count(pair: Pair, name: str) -> float:
    return pair.decode.parts.metrics.registry.get_sample_value(f"twostep_{name}") or 0.0


async def test_a_held_request_keeps_its_kv_while_others_are_served_and_then_goes_on() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await begin(pair, "slow", max_tokens=LONG)
        await hold(pair, 1, "slow", living=("slow",))
        assert count(pair, "paused_requests") == 1
        served = await pair.router.serve(request("quick", 60, max_tokens=50))
        assert served.tokens == Solo(MODEL).answer(request("quick", 60, max_tokens=50))[0]
        assert not pair.router.answer("slow").over.is_set()
        assert "slow" in {entry.owner for entry in pair.decode.control.ledger().entries if entry.blocks}
        await hold(pair, 2, living=("slow",))
        await pair.router.answer("slow").over.wait()
        assert tuple(pair.router.answer("slow").tokens) == Solo(MODEL).answer(request("slow", 60, max_tokens=LONG))[0]
        await pair.settle()
        pair.require_clean()


async def test_a_request_that_stays_held_is_ended_in_time_with_a_reason_of_its_own() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await begin(pair, "deaf", max_tokens=LONG)
        await hold(pair, 1, "deaf", living=("deaf",))
        pair.tick(TIMERS.pause_s)
        assert not pair.router.answer("deaf").over.is_set()
        pair.tick(1.0)
        await pair.router.answer("deaf").over.wait()
        error = pair.router.answer("deaf").error
        assert isinstance(error, SlowConsumer)
        assert not error.retry_elsewhere
        assert count(pair, "slow_consumers_total") == 1
        await pair.settle()
        pair.require_clean()


async def test_a_node_with_nothing_but_paused_requests_is_not_taken_for_stalled() -> None:
    impatient = replace(DECODE, timers=replace(TIMERS, stall_s=5.0))
    async with running_pair(MODEL, PREFILL, impatient) as pair:
        await begin(pair, "slow", max_tokens=LONG)
        await hold(pair, 1, "slow", living=("slow",))
        pair.tick(TIMERS.pause_s - 1)
        pair.decode.readiness.refresh()
        assert pair.decode.readiness.reason == ""
        await pair.router.cancel(request("slow", 60).id)
        await pair.settle()
        pair.require_clean()
