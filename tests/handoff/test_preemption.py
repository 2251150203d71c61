"""A decode node that is short of blocks takes them from the youngest and computes it again: no answer changes."""

import asyncio

import pytest

from twostep.core.request import Request
from twostep.decode_node.config import DecodeNodeConfig
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

NUM_BLOCKS = 12
"""Room for one of two answers that each grow to nine blocks, beside a reservation of three."""
DECODE = DecodeNodeConfig(
    timers=TIMERS, engine=engine_config(blocks=NUM_BLOCKS, model=MODEL), landing_bytes=1 << 20, unattached_share=1.0
)


def growing(name: str) -> Request:
    return request(name, 60, max_tokens=220)


async def hand_off(pair: Pair, one: Request) -> None:
    await pair.router.prefill(one, (await pair.router.grant(one)).ticket)


async def require_oracles_answer(pair: Pair, one: Request) -> None:
    answer = pair.router.answer(one.id)
    await answer.over.wait()
    assert answer.error is None
    assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0]


def count(pair: Pair, name: str) -> float:
    return pair.decode.parts.metrics.registry.get_sample_value(f"twostep_{name}_total") or 0.0


async def test_a_preempted_request_is_computed_again_and_its_answer_stays_the_same() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        first, second = growing("first"), growing("second")
        # With this the first answer takes all blocks: none of the second's stays findable.
        await pair.router.grant(request("parked", 60))
        await hand_off(pair, first)
        await hand_off(pair, second)
        gate.open()
        await require_oracles_answer(pair, first)
        await require_oracles_answer(pair, second)
        assert count(pair, "preemptions") >= 1
        assert count(pair, "prompt_tokens_computed") >= 60
        bill = pair.router.answer("second").bill
        assert bill is not None
        assert bill.computed_prompt_tokens == 60
        await pair.router.cancel(request("parked", 60).id)
        await pair.settle()
        pair.require_clean()


async def test_a_request_is_preempted_while_a_transfer_fills_another() -> None:
    prefill_gate, decode_gate = Gate(), Gate()
    async with running_pair(MODEL, PREFILL, DECODE, prefill_gate=prefill_gate, decode_gate=decode_gate) as pair:
        decode_gate.close()
        first, second, filling = growing("first"), growing("second"), request("filling", 60)
        await hand_off(pair, first)
        await hand_off(pair, second)
        prefill_gate.close()
        handing_off = asyncio.ensure_future(hand_off(pair, filling))
        await asyncio.to_thread(prefill_gate.reached.wait)
        decode_gate.open()
        await require_oracles_answer(pair, first)
        await require_oracles_answer(pair, second)
        assert count(pair, "preemptions") >= 1
        handoff = pair.decode.parts.handoffs.find(filling.id)
        assert handoff is not None
        assert handoff.state in (HandoffState.RESERVED, HandoffState.FILLING)
        prefill_gate.open()
        await handing_off
        await require_oracles_answer(pair, filling)
        await pair.settle()
        pair.require_clean()


async def test_a_preempted_request_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        first, second = growing("first"), growing("second")
        await pair.router.grant(request("parked", 60))
        await hand_off(pair, first)
        await hand_off(pair, second)
        gate.open()
        while not count(pair, "preemptions"):
            await pair.router.status()
        await pair.router.cancel(second.id)
        await require_oracles_answer(pair, first)
        await pair.router.answer(second.id).over.wait()
        await pair.router.cancel(request("parked", 60).id)
        await pair.settle()
        pair.require_clean()
