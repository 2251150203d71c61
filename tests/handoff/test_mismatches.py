"""KV that is spoiled in P's cache, on the way or on arrival: found before it is used, and never believed again."""

import asyncio
import ctypes
from dataclasses import replace

import pytest

from twostep.core.errors import ChecksumMismatch, ServingError, TransferFailed
from twostep.core.ids import BlockId, NodeRef
from twostep.core.request import Request
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.kv_cache import HostKVCache
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.description import PeerStage, PeerState
from twostep.prefill_node.pair_health import PairLimits
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, RING, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

LIMITS = PairLimits()


class SpoilingFabric(LocalFabric):
    """Flips a bit of whatever lands while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.spoils = False

    def write(self, node: NodeRef, copies: list[tuple[int, int, int]], note: bytes) -> bool:
        landed = super().write(node, copies, b"" if self.spoils else note)
        if self.spoils:
            address = copies[-1][1]
            ctypes.c_uint8.from_address(address).value ^= 1
        return landed


async def attempt(pair: Pair, one: Request, number: int) -> pb.PrefillReply:
    ticket = (await pair.router.grant(one, attempt=number)).ticket
    return await pair.router.prefill(one, ticket)


async def tokens_of(pair: Pair, one: Request, number: int) -> tuple[int, ...]:
    answer = pair.router.answer(one.id, number)
    await answer.over.wait()
    return tuple(answer.tokens)


async def serve_at_last(pair: Pair, one: Request) -> tuple[int, ...]:
    """Serve a request as the router does: after a mismatch once more."""
    for number in range(1, 6):
        try:
            await attempt(pair, one, number)
        except ServingError:
            assert pair.router.answer(one.id, number).tokens == []
        else:
            return await tokens_of(pair, one, number)
    raise AssertionError("five attempts in vain")


def spoil_cache(pair: Pair, block: int) -> None:
    """Flip a bit of a cached block of P, and let D forget all that it has cached."""
    memory = pair.prefill.parts.engine.runner.kv
    assert isinstance(memory, HostKVCache)
    memory.words[1, block] ^= 1
    pair.decode.parts.engine.purge(map(BlockId, range(64)))


def state_of_d(pair: Pair) -> PeerState:
    (state,) = pair.prefill.parts.peers.states()
    return state


def num_mismatches(pair: Pair, cause: str) -> float:
    registry = pair.prefill.parts.metrics.registry
    return registry.get_sample_value("twostep_pair_mismatches_total", {"peer": "d", "cause": cause}) or 0.0


async def test_a_spoiled_landing_byte_is_found_and_a_new_attempt_uses_the_same_blocks() -> None:
    fabric, one = SpoilingFabric(), request("a", 100)
    async with running_pair(MODEL, PREFILL, DECODE, fabric=fabric) as pair:

        def held_blocks() -> tuple[int, ...]:
            handoff = pair.decode.parts.handoffs.find(one.id)
            assert handoff is not None
            assert handoff.reservation is not None
            return handoff.reservation.table

        fabric.spoils = True
        with pytest.raises(ChecksumMismatch):
            await attempt(pair, one, 1)
        blocks = held_blocks()
        assert pair.router.answer("a").tokens == []
        fabric.spoils = False
        ticket = (await pair.router.grant(one, attempt=2)).ticket
        assert held_blocks() == blocks
        await pair.router.prefill(one, ticket)
        assert await tokens_of(pair, one, 2) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()


async def test_a_block_that_rots_in_ps_cache_is_purged_and_computed_anew() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        one = request("a", 100)
        await pair.router.serve(one)
        spoil_cache(pair, 0)
        with pytest.raises(ChecksumMismatch):
            await attempt(pair, one, 2)
        assert (await attempt(pair, one, 3)).bill.cached_tokens == 0
        assert await tokens_of(pair, one, 3) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()


async def test_a_rotten_prefix_that_d_holds_too_is_noticed_before_an_answer_comes_of_it() -> None:
    """P computes from blocks that it does not send."""
    stem = request("stem", 64)
    one = Request(request("a", 1).id, (*stem.prompt, *stem.prompt, *stem.prompt), stem.sampling, stem.stop)
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.serve(stem)
        memory = pair.prefill.parts.engine.runner.kv
        assert isinstance(memory, HostKVCache)
        memory.words[1, 0] ^= 1
        ticket = (await pair.router.grant(one, attempt=1)).ticket
        assert ticket.missing.start == 64
        with pytest.raises(TransferFailed, match="1 blocks of its cached prefix had changed"):
            await pair.router.prefill(one, ticket)
        assert pair.router.answer(one.id, 1).tokens == []
        registry = pair.prefill.parts.metrics.registry
        assert registry.get_sample_value("twostep_prefix_blocks_checked_total") == 2
        assert (await attempt(pair, one, 2)).bill.cached_tokens == 0
        assert await tokens_of(pair, one, 2) == Solo(MODEL).answer(one)[0]
        # Nothing that was computed from the rotten block is left for others to find.
        again = replace(one, id=request("again", 1).id)
        assert await serve_at_last(pair, again) == Solo(MODEL).answer(again)[0]
        await pair.settle()
        pair.require_clean()


async def test_twenty_prompts_with_a_corrupt_prefix_are_all_answered_rightly_and_the_pair_goes_on() -> None:
    stem = request("stem", 64)
    prompts = [Request(request(f"r{n}", 1).id, (*stem.prompt, n, n + 1), stem.sampling, stem.stop) for n in range(20)]
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.serve(stem)
        spoil_cache(pair, 0)
        answers = await asyncio.gather(*(serve_at_last(pair, one) for one in prompts))
        assert answers == [Solo(MODEL).answer(one)[0] for one in prompts]
        assert num_mismatches(pair, "source") >= 1
        assert num_mismatches(pair, "path") == 0
        assert state_of_d(pair).stage is PeerStage.PROVEN
        await pair.settle()
        pair.require_clean()


@pytest.mark.parametrize("decode", [DECODE, RING], ids=["whole range", "ring"])
async def test_a_pair_whose_copies_differ_too_often_rests_and_says_why(decode: DecodeNodeConfig) -> None:
    fabric = SpoilingFabric()
    async with running_pair(MODEL, PREFILL, decode, fabric=fabric) as pair:
        fabric.spoils = True
        for number in range(1, LIMITS.max_mismatches + 1):
            assert state_of_d(pair).stage is PeerStage.PROVEN
            with pytest.raises(ChecksumMismatch):
                await attempt(pair, request("a", 100), number)
        assert num_mismatches(pair, "path") == LIMITS.max_mismatches
        state = state_of_d(pair)
        assert (state.stage, state.reason) == (PeerStage.SUSPENDED, "3 copies in 60 s did not match what was sent")
        with pytest.raises(TransferFailed, match="3 copies in 60 s did not match"):
            await attempt(pair, request("b", 100), 1)
        (told,) = (await pair.router.status())[0].peers
        assert told.state == pb.PeerState.SUSPENDED


async def test_a_pair_that_has_rested_serves_again_once_bytes_arrive_unchanged() -> None:
    fabric = SpoilingFabric()
    timers = replace(TIMERS, handshake_retry_s=0.01)
    async with running_pair(MODEL, replace(PREFILL, timers=timers), DECODE, fabric=fabric) as pair:
        fabric.spoils = True
        for number in range(1, LIMITS.max_mismatches + 1):
            with pytest.raises(ChecksumMismatch):
                await attempt(pair, request("a", 100), number)
        pair.tick(advance_s=LIMITS.suspended_s - 1)
        assert state_of_d(pair).stage is PeerStage.SUSPENDED
        pair.tick(advance_s=1)
        while "the probe was written" not in state_of_d(pair).reason:
            await pair.router.status()
        fabric.spoils = False
        while state_of_d(pair).stage is not PeerStage.PROVEN:
            await pair.router.status()
        one = request("b", 100)
        assert (await pair.router.serve(one)).tokens == Solo(MODEL).answer(one)[0]


async def test_a_corrupt_block_is_purged_also_when_its_range_passes_through_a_ring() -> None:
    one = request("a", 200)
    async with running_pair(MODEL, PREFILL, RING) as pair:
        await pair.router.serve(one)
        spoil_cache(pair, 0)
        with pytest.raises(ChecksumMismatch):
            await attempt(pair, one, 2)
        assert num_mismatches(pair, "source") == 1
        assert (await attempt(pair, one, 3)).bill.cached_tokens == 0
        assert await tokens_of(pair, one, 3) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()
