"""Prefill nodes of different block sizes fill the blocks of one decode node, also one after the other for one request."""

from dataclasses import replace

import pytest

from twostep.core.errors import NodeUnavailable
from twostep.core.fingerprint import Geometry
from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.core.request import Request
from twostep.kv_transfer.probe import probe_digest
from twostep.node.handoff_messages import Failed
from twostep.proto import node_pb2 as pb
from twostep.proto.wire import geometry_to_pb, node_to_pb, ticket_from_pb
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes


def blocks_of(block_tokens: int) -> dict[str, object]:
    return {"engine": engine_config(blocks=64, model=MODEL, block_tokens=block_tokens)}


def introduce_another(pair: Pair, block_tokens: int) -> tuple[NodeRef, Geometry]:
    """Let a second prefill node prove itself to D: one that never sends anything."""
    hello = pair.prefill.parts.peers._hello
    node, geometry = NodeRef(NodeId("q"), new_incarnation()), replace(hello.geometry, block_tokens=block_tokens)
    reply = pair.decode.answer_hello(replace(hello, node=node, geometry=geometry))
    assert pair.decode.peers.prove(
        node, reply.registration, probe_digest(pair.decode._memory.read(reply.probe_offset, reply.probe_bytes))
    )
    return node, geometry


async def reserve_for(pair: Pair, one: Request, node: NodeRef, geometry: Geometry) -> pb.Ticket:
    """Reserve the first attempt of a request for a prefill node other than P."""
    p = pb.NodeDescription()
    p.CopyFrom(pair.router.p)
    pair.router.p.node.CopyFrom(node_to_pb(node))
    pair.router.p.geometry.CopyFrom(geometry_to_pb(geometry))
    ticket = (await pair.router.grant(one)).ticket
    pair.router.p.CopyFrom(p)
    return ticket


@pytest.mark.parametrize(("first", "second"), [(32, 64), (64, 32), (96, 64)])
async def test_a_new_attempt_may_come_from_a_node_with_other_blocks(first: int, second: int) -> None:
    prefill, decode = replace(PREFILL, **blocks_of(second)), replace(DECODE, **blocks_of(32))
    stem, one = request("stem", 112), request("a", 150)
    one = replace(one, prompt=stem.prompt + one.prompt)
    async with running_pair(MODEL, prefill, decode) as pair:
        # D holds the first 96 tokens of the prompt already.
        await pair.router.serve(stem, alone=True)
        ticket = await reserve_for(pair, one, *introduce_another(pair, first))
        assert ticket.missing.start == 96 // first * first
        lost = ticket_from_pb(ticket)
        await pair.decode.legs.failed(Failed(lost.leg, lost.extent.generation, NodeUnavailable("gone"), drained=True))
        again = (await pair.router.grant(one, attempt=2)).ticket
        assert again.missing.start % second == 0
        await pair.router.prefill(one, again)
        answer = pair.router.answer(one.id, 2)
        await answer.over.wait()
        assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()


async def test_a_new_attempt_from_a_node_with_fitting_blocks_keeps_those_of_the_first() -> None:
    one = request("a", 100)
    async with running_pair(MODEL, replace(PREFILL, **blocks_of(64)), replace(DECODE, **blocks_of(32))) as pair:
        ticket = ticket_from_pb(await reserve_for(pair, one, *introduce_another(pair, 32)))
        handoff = pair.decode.parts.handoffs.find(one.id)
        assert handoff is not None
        held = handoff.reservation
        await pair.decode.legs.failed(Failed(ticket.leg, ticket.extent.generation, NodeUnavailable("gone"), drained=True))
        await pair.router.grant(one, attempt=2)
        assert pair.decode.parts.handoffs.find(one.id) is handoff
        assert handoff.reservation is held
        await pair.router.cancel(one.id)
