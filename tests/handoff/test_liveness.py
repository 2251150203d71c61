"""Who is taken for dead, and who is not: what counts as a sign of life, and whose own sleep does not."""

import asyncio
import socket
import threading

import pytest

from twostep.core.errors import Cancelled, TransferTimeout
from twostep.core.ids import NodeId, NodeRef, RequestId, new_incarnation
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.description import Peer, PeerStage
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.leg import Phase
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.computing import computing
from twostep.tests.handoff.gate import LONG_S
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

A = RequestId("a")
BY_LAYER = PrefillNodeConfig(timers=TIMERS, engine=engine_config(blocks=64, model=MODEL, layer_group=1), one_write_tokens=0)
"""Each layer goes out in a write of its own."""


class SlowFabric(LocalFabric):
    """While it is slow, each write waits until a test lets one through."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.permits = threading.Semaphore(0)

    def write(self, node: NodeRef, copies: list[tuple[int, int, int]], note: bytes) -> bool:
        if self.is_slow:
            assert self.permits.acquire(timeout=LONG_S), "no write was let through"
        return super().write(node, copies, note)


async def start(pair: Pair) -> "asyncio.Task[pb.PrefillReply]":
    ticket = (await pair.router.grant(request("a", 100), remaining_s=600.0)).ticket
    return asyncio.create_task(pair.router.prefill(request("a", 100), ticket))


async def pass_time(pair: Pair, seconds: int) -> None:
    """Let time pass second by second, with whatever the nodes say to each other."""
    for _ in range(seconds):
        pair.tick(advance_s=1.0)
        await pair.router.status()


async def reach(pair: Pair, phase: Phase, bytes_sent: int) -> None:
    """Wait until request `a` is in `phase` on P and has sent at least so many bytes."""
    while not any(leg.phase is phase and leg.bytes_sent >= bytes_sent for leg in pair.prefill.legs):
        await pair.router.status()


def lives(pair: Pair) -> bool:
    return pair.decode.parts.handoffs.find(A) is not None and bool(pair.prefill.legs.of(A))


async def test_a_node_that_was_stopped_itself_takes_neither_router_nor_peer_for_dead() -> None:
    async with computing(remaining_s=600.0) as (pair, gate, prefill):
        await pair.router.heartbeat(1, A, lease_s=10.0)
        pair.clock.advance(1000.0)
        pair.tick()
        assert lives(pair)
        gate.open()
        await prefill
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(request("a", 100))[0]


async def test_after_a_nodes_own_sleep_a_silent_router_is_given_a_lease_no_more() -> None:
    async with computing(remaining_s=600.0) as (pair, gate, prefill):
        await pair.router.heartbeat(1, A, lease_s=10.0)
        pair.clock.advance(1000.0)
        pair.tick()
        pair.tick(advance_s=7.0)
        assert lives(pair)
        pair.tick(advance_s=2.0)
        with pytest.raises(Cancelled):
            await prefill
        gate.open()
        await pair.settle()
        pair.require_clean()


async def test_a_slow_send_goes_on_for_as_long_as_bytes_arrive() -> None:
    fabric, began = SlowFabric(), 0.0
    async with running_pair(MODEL, BY_LAYER, DECODE, fabric=fabric) as pair:
        fabric.is_slow, began = True, pair.clock.now
        prefill = await start(pair)
        await reach(pair, Phase.SENDING, 0)
        for number in range(1, MODEL.num_layers):
            await pass_time(pair, 20)
            fabric.permits.release()
            await reach(pair, Phase.SENDING, number * 4096)
        await pass_time(pair, 20)
        fabric.permits.release()
        await prefill
        assert pair.clock.now - began > TIMERS.progress_s
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(request("a", 100))[0]


async def test_a_send_that_stands_still_ends_on_both_nodes() -> None:
    fabric = SlowFabric()
    async with running_pair(MODEL, BY_LAYER, DECODE, fabric=fabric) as pair:
        fabric.is_slow = True
        prefill = await start(pair)
        await reach(pair, Phase.SENDING, 0)
        await pass_time(pair, int(TIMERS.progress_s * 1.5))
        fabric.permits.release(100)
        with pytest.raises((TransferTimeout, Cancelled)):
            await prefill
        pair.tick(advance_s=TIMERS.retry_s + 1)
        await pair.router.answer("a").over.wait()
        assert isinstance(pair.router.answer("a").error, TransferTimeout)
        await pair.settle()
        pair.require_clean()


async def test_a_peer_that_takes_everything_and_answers_nothing_delays_no_other() -> None:
    # Its connections are opened by the kernel, and nobody ever reads them.
    with socket.create_server(("127.0.0.1", 0)) as hole:
        async with running_pair(MODEL, PREFILL, DECODE) as pair:
            silent = Peer(NodeRef(NodeId("hole"), new_incarnation()), f"127.0.0.1:{hole.getsockname()[1]}")
            peers, d = pair.prefill.parts.peers, pair.decode.parts.node
            known = peers.address_of(d)
            assert known
            # Under another address D is a node to be met anew, after the silent one.
            met = peers.learn_peers([silent, Peer(d, known.replace("127.0.0.1", "localhost"))], 60.0)
            assert [state.stage for state in met] == [PeerStage.HANDSHAKING] * 2
            await pair.router.introduce()
            stages = {state.node.id: state.stage for state in peers.states()}
            assert stages == {"hole": PeerStage.HANDSHAKING, "d": PeerStage.PROVEN}
            await pair.router.serve(request("a", 100))
