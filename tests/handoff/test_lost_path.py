"""A connection is lost without a word: writes stay in flight for ever. Or it comes back over TCP, which was not meant."""

import asyncio
from dataclasses import replace

import pytest

from twostep.core.errors import Cancelled, UnprovenPair
from twostep.core.ids import RequestId
from twostep.node.description import PeerStage
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo
from twostep.tests.kv_transfer.faults import FaultyTransport

pytestmark = pytest.mark.processes

CALL_S = 1.0


RETRY_S = 0.01


async def stage(pair: Pair, wanted: PeerStage) -> None:
    """Wait until the prefill node has got so far with the decode node."""
    async with asyncio.timeout(10):
        while pair.prefill.parts.peers.states()[0].stage is not wanted:  # noqa: ASYNC110 - the node has no event for it
            await asyncio.sleep(0.001)


async def test_where_no_write_ends_any_more_the_nodes_shake_hands_anew() -> None:
    prefill = replace(PREFILL, timers=replace(TIMERS, call_s=CALL_S))
    async with running_pair(MODEL, prefill, DECODE) as pair:
        sender = pair.prefill.parts.sender
        sender._transport = faults = FaultyTransport(sender._transport)
        faults.holding = True
        one = request("a", 100)
        prefilling = asyncio.ensure_future(pair.router.prefill(one, (await pair.router.grant(one)).ticket))
        while not sender.flights.are_stuck(pair.decode.parts.node, for_s=0.0):  # noqa: ASYNC110 - the sender's thread tells nobody
            await asyncio.sleep(0.001)
        pair.clock.advance(CALL_S)
        await pair.router.cancel(RequestId("a"))
        with pytest.raises(Cancelled):
            await prefilling
        await stage(pair, PeerStage.HANDSHAKING)
        faults.holding = False
        await stage(pair, PeerStage.PROVEN)
        again = request("b", 100)
        assert (await pair.router.serve(again)).tokens == Solo(MODEL).answer(again)[0]
        await pair.settle()


async def test_a_pair_that_fell_back_to_tcp_has_failed_and_serves_again_when_rdma_is_back() -> None:
    timers = replace(TIMERS, handshake_retry_s=RETRY_S)
    async with running_pair(MODEL, replace(PREFILL, timers=timers, allow_tcp=False), DECODE) as pair:
        sender, peers, decode = pair.prefill.parts.sender, pair.prefill.parts.peers, pair.decode.parts.node
        sender._transport = faults = FaultyTransport(sender._transport)
        faults.takes_tcp = True
        peers.doubt(decode, "its connection was lost")
        await stage(pair, PeerStage.FAILED)
        (state,) = peers.states()
        assert (state.path, state.reason) == ("local/tcp", f"KV to {decode} goes over TCP, and allow_tcp is false")
        with pytest.raises(UnprovenPair):
            await pair.router.grant(request("a", 100))
        pair.tick()
        assert pair.prefill.parts.metrics.registry.get_sample_value("twostep_peer_paths", {"path": "local/tcp"}) == 1
        faults.takes_tcp = False
        await stage(pair, PeerStage.PROVEN)
        assert peers.states()[0].path == "local/memory"
        one = request("b", 100)
        assert (await pair.router.serve(one)).tokens == Solo(MODEL).answer(one)[0]


async def test_where_tcp_is_allowed_it_is_named_and_serves() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        sender, peers, decode = pair.prefill.parts.sender, pair.prefill.parts.peers, pair.decode.parts.node
        sender._transport = faults = FaultyTransport(sender._transport)
        faults.takes_tcp = True
        peers.doubt(decode, "its connection was lost")
        await stage(pair, PeerStage.PROVEN)
        assert peers.states()[0].path == "local/tcp"
