"""Every block and landing extent has an owner that can be listed, on both nodes, in every phase."""

import asyncio
from typing import Any

import pytest

from twostep.decode_node.config import DecodeNodeConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.computing import computing, queued_behind_it
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request

pytestmark = pytest.mark.processes

BLOCK_BYTES = 32 * MODEL.num_layers * MODEL.num_kv_heads * 2 * MODEL.head_dim * 4
SMALL_DECODE = DecodeNodeConfig(timers=TIMERS, engine=engine_config(blocks=5, model=MODEL), landing_bytes=1 << 20)
SMALL_PREFILL = PrefillNodeConfig(timers=TIMERS, engine=engine_config(blocks=5, model=MODEL))


async def ledgers(pair: Pair) -> tuple[pb.LedgerReply, pb.LedgerReply]:
    """Return what both nodes answer."""
    stubs = (pair.router.prefill_node, pair.router.decode_node)
    replies = [await stub.node.Ledger(pb.LedgerRequest()) for stub in stubs]
    return replies[0], replies[1]


async def test_a_filling_request_is_listed_with_its_blocks_its_extent_and_both_nodes() -> None:
    async with computing() as (pair, gate, prefilling):
        await pair.router.heartbeat(1, "a")
        pair.tick(advance_s=2.0)
        of_p, of_d = await ledgers(pair)
        (leg,) = of_p.entries
        assert (leg.owner, leg.phase, leg.attempt, leg.age_s) == ("a", "running, leg computing", 1, 2.0)
        assert (len(leg.blocks), leg.destination, leg.writes_in_flight) == (4, str(pair.decode.parts.node), 0)
        held, extent = of_d.entries
        assert (held.owner, held.attempt, len(held.blocks), held.age_s) == ("a", 1, 5, 2.0)
        assert held.phase.startswith("reserved, handoff ")
        source = str(pair.prefill.parts.node)
        assert (held.source, extent.source, extent.owner, extent.attempt) == (source, source, "a", 1)
        assert (extent.phase, extent.landing_bytes, extent.generation) == ("landing lent", 4 * BLOCK_BYTES, leg.generation)
        gate.open()
        await prefilling
        await pair.router.answer("a").over.wait()
        await pair.settle()
        assert [len(reply.entries) for reply in await ledgers(pair)] == [0, 0]


async def test_who_waits_is_listed_with_what_it_lacks() -> None:
    async with computing(decode=SMALL_DECODE) as (pair, gate, prefilling):
        waiting = pair.router.reserve(request("b", 100))
        await waiting.read()
        (queued,) = [entry for entry in (await ledgers(pair))[1].entries if entry.owner == "b"]
        assert (queued.phase, len(queued.blocks)) == ("queued at 0, lacks share", 0)
        waiting.cancel()
        gate.open()
        await prefilling


async def test_a_leg_that_waits_for_blocks_is_listed_by_p() -> None:
    async with computing(prefill=SMALL_PREFILL) as (pair, gate, prefilling):
        second = await queued_behind_it(pair, "b")
        (waiting,) = [entry for entry in (await ledgers(pair))[0].entries if entry.owner == "b"]
        assert (waiting.phase, waiting.destination) == ("queued at 0, lacks blocks", str(pair.decode.parts.node))
        gate.open()
        await asyncio.gather(prefilling, second)


async def test_an_extent_that_drains_tells_how_long_it_rests() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))

        async def unheard(abort: Any) -> bool:
            return False

        pair.decode.parts.sources.abort = unheard  # type: ignore[method-assign]
        await pair.router.cancel(request("a", 100).id)
        await pair.settle()
        pair.tick(advance_s=10.0)
        (extent,) = (await ledgers(pair))[1].entries
        rest_s = TIMERS.landing_cooldown_s - 10.0
        assert (extent.phase, extent.age_s, extent.cooldown_left_s) == ("landing draining", 10.0, rest_s)
        assert pair.decode.parts.landing.census().draining_bytes == extent.landing_bytes


async def test_an_extent_rests_from_its_legs_end_on_while_proof_is_asked_for() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def abort(abort: Any) -> bool:
            asked.set()
            await may_answer.wait()
            return True

        pair.decode.parts.sources.abort = abort  # type: ignore[method-assign]
        await pair.router.cancel(request("a", 100).id)
        await asked.wait()
        pair.tick(advance_s=10.0)
        (extent,) = (await ledgers(pair))[1].entries
        assert (extent.phase, extent.cooldown_left_s) == ("landing draining", TIMERS.landing_cooldown_s - 10.0)
        may_answer.set()
        await pair.settle()
        pair.require_clean()
        assert pair.decode.parts.landing.unproven_reuse == 0


async def test_blocks_of_a_request_that_the_node_has_forgotten_are_orphans() -> None:
    """The engine still knows the request: whoever should end it does not."""
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100), alone=False)
        handoffs, metrics = pair.decode.parts.handoffs, pair.decode.parts.metrics
        (handoff,) = handoffs
        assert metrics.registry.get_sample_value("twostep_orphaned_blocks") == 0
        handoffs.remove(handoff)
        assert metrics.registry.get_sample_value("twostep_orphaned_blocks") == 0
        handoffs.released(handoff.id)
        assert metrics.registry.get_sample_value("twostep_orphaned_blocks") == 5
        of_d = (await ledgers(pair))[1]
        assert of_d.orphaned_blocks == 5
        assert of_d.entries[0].phase == "orphaned"
        assert pair.decode.control.describe().not_ready_reason == ""
        pair.tick(advance_s=TIMERS.audit_s)
        assert "which nobody here answers for" in pair.decode.control.describe().not_ready_reason
        pair.decode.parts.engine.release(handoff.id)
