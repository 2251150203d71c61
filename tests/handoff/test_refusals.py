"""What is refused at once, with a reason, before anything is taken or computed."""

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from twostep.core.errors import (
    Conflict,
    DeadlineExceeded,
    FingerprintMismatch,
    InvalidRequest,
    NodeReplaced,
    PromptTooLong,
    QueueFull,
    StaleLeg,
    TicketExpired,
    TransferFailed,
    UnprovenPair,
    Unsupported,
)
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId, new_incarnation
from twostep.decode_node.config import DecodeNodeConfig
from twostep.node.description import Peer, PeerStage
from twostep.proto import node_pb2 as pb
from twostep.proto.wire import node_to_pb
from twostep.tests.handoff.gate import PATIENCE_S
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request

pytestmark = pytest.mark.processes

SMALL_DECODE = DecodeNodeConfig(timers=TIMERS, engine=engine_config(blocks=5, model=MODEL), landing_bytes=1 << 20, max_queued=1)


FIELDS = [field.name for field in fields(Fingerprint)]


async def require_unused(pair: Pair) -> None:
    """Assert that refusals have taken nothing and left nothing running."""
    await pair.settle()
    pair.require_clean()
    assert (await pair.router.status())[0].step == 0


async def test_d_refuses_a_prefill_node_of_another_fingerprint_and_names_the_field() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        own = dict(pair.router.p.fingerprint)
        for field in FIELDS:
            pair.router.p.fingerprint[field] = f"{own[field]}7"
            with pytest.raises(FingerprintMismatch, match=f"^{field} differs"):
                await pair.router.grant(request("a", 100))
            pair.router.p.fingerprint[field] = own[field]
        await require_unused(pair)


async def test_p_refuses_a_decode_node_of_another_fingerprint_before_it_computes_and_names_the_field() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        own = dict(pair.router.d.fingerprint)
        for number, field in enumerate(FIELDS):
            one = request(f"r{number}", 100)
            granted = await pair.router.grant(one)
            pair.router.d.fingerprint[field] = f"{own[field]}7"
            with pytest.raises(FingerprintMismatch, match=f"^{field} differs"):
                await pair.router.prefill(one, granted.ticket)
            pair.router.d.fingerprint[field] = own[field]
            await pair.router.cancel(one.id)
        await require_unused(pair)


async def test_a_prompt_that_can_never_fit_is_refused_while_others_wait() -> None:
    async with running_pair(MODEL, PREFILL, SMALL_DECODE) as pair:
        await pair.router.grant(request("a", 100))
        waiting = pair.router.reserve(request("b", 100))
        await waiting.read()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PromptTooLong, match=r"200 tokens.*128"):
                await pair.router.grant(request("c", 200))
        waiting.cancel()
        await pair.router.cancel(RequestId("a"))


async def test_one_more_than_the_line_holds_is_refused() -> None:
    async with running_pair(MODEL, PREFILL, SMALL_DECODE) as pair:
        await pair.router.grant(request("a", 100))
        waiting = pair.router.reserve(request("b", 100))
        await waiting.read()
        with pytest.raises(QueueFull, match=r"1 requests wait"):
            await pair.router.grant(request("c", 100))
        waiting.cancel()
        await pair.router.cancel(RequestId("a"))


async def test_d_refuses_a_prefill_node_whose_bytes_have_never_arrived() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        pair.router.p.node.CopyFrom(node_to_pb(NodeRef(NodeId("p"), new_incarnation())))
        with pytest.raises(TransferFailed, match="has not yet proved"):
            await pair.router.grant(request("a", 100))
        await require_unused(pair)


@pytest.mark.parametrize("block_tokens", [0, 31, 64])
async def test_d_believes_no_geometry_that_the_prefill_node_has_not_told_itself(block_tokens: int) -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        pair.router.p.geometry.block_tokens = block_tokens
        with pytest.raises(UnprovenPair, match=f"another geometry .* not .*block_tokens={block_tokens},"):
            await pair.router.grant(request("a", 100))
        await require_unused(pair)


async def test_the_same_attempt_of_the_same_request_is_a_conflict() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        with pytest.raises(Conflict, match="attempt 1"):
            await pair.router.grant(request("a", 100))
        await pair.router.cancel(RequestId("a"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"max_tokens": 0}, InvalidRequest),
        ({"num_tokens": 0}, InvalidRequest),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(change: dict[str, int], error: type[Exception]) -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        wrong = request("a", change.get("num_tokens", 10), max_tokens=change.get("max_tokens", 5))
        with pytest.raises(error):
            await pair.router.grant(wrong)
        await require_unused(pair)


async def test_a_request_that_comes_after_its_deadline_is_refused() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        with pytest.raises(DeadlineExceeded):
            await pair.router.grant(request("a", 10), remaining_s=0.0)
        await require_unused(pair)


def expired(ticket: pb.Ticket) -> None:
    ticket.remaining_s = -1.0


def of_an_earlier_life(ticket: pb.Ticket) -> None:
    ticket.leg.source.incarnation = Incarnation(ticket.leg.source.incarnation - 1)


def for_other_tokens(ticket: pb.Ticket) -> None:
    ticket.token_digest = b"another"


def for_another_request(ticket: pb.Ticket) -> None:
    ticket.leg.request = "another"


def for_other_heads(ticket: pb.Ticket) -> None:
    ticket.first_head = 1


def with_a_gap(ticket: pb.Ticket) -> None:
    ticket.missing.start = 7


def of_another_registration(ticket: pb.Ticket) -> None:
    ticket.registration += 1


def outside_the_pool(ticket: pb.Ticket) -> None:
    ticket.extent.offset = 1 << 30


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (expired, TicketExpired),
        (of_an_earlier_life, NodeReplaced),
        (for_other_tokens, TransferFailed),
        (for_another_request, TransferFailed),
        (for_other_heads, TransferFailed),
        (with_a_gap, TransferFailed),
        (of_another_registration, StaleLeg),
        (outside_the_pool, TransferFailed),
    ],
)
async def test_p_refuses_a_ticket_that_is_not_for_it_before_it_computes(spoil: Any, error: type[Exception]) -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        ticket = (await pair.router.grant(request("a", 100))).ticket
        spoil(ticket)
        with pytest.raises(error):
            await pair.router.prefill(request("a", 100), ticket)
        await pair.router.cancel(RequestId("a"))
        await pair.settle()
        assert (await pair.router.status())[0].step == 0


async def test_the_landing_space_of_a_refused_ticket_is_free_at_once() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        ticket = (await pair.router.grant(request("a", 100))).ticket
        pair.router.d.fingerprint["weights"] = "another"
        with pytest.raises(FingerprintMismatch):
            await pair.router.prefill(request("a", 100), ticket)
        await pair.router.cancel(RequestId("a"))
        await pair.settle()
        pair.require_clean()
        assert pair.decode.parts.landing.unproven_reuse == 0


async def test_nodes_that_differ_shake_hands_in_vain_and_say_why() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        hello = pair.prefill.parts.peers._hello
        stranger = replace(hello, node=NodeRef(NodeId("q"), new_incarnation()))
        own = hello.fingerprint.as_dict()
        for field in FIELDS:
            other = Fingerprint.from_dict(own | {field: f"{own[field]}7"})
            with pytest.raises(FingerprintMismatch, match=f"^{field} differs"):
                pair.decode.answer_hello(replace(stranger, fingerprint=other))
        with pytest.raises(Unsupported, match="KV heads"):
            pair.decode.answer_hello(replace(stranger, geometry=replace(hello.geometry, end_head=1)))
        with pytest.raises(Unsupported, match="sends over nixl"):
            pair.decode.answer_hello(replace(stranger, transport="nixl"))
        assert pair.decode.peers.incarnation_of(NodeId("q")) is None


async def test_a_decode_node_that_is_not_there_is_a_failed_peer_and_delays_no_other() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        gone = Peer(NodeRef(NodeId("gone"), new_incarnation()), "127.0.0.1:1")
        pair.prefill.parts.peers.learn_peers([gone], 60.0)
        states: dict[NodeRef, PeerStage] = {}
        while states.get(gone.node) is not PeerStage.FAILED:
            await pair.router.status()
            states = {state.node: state.stage for state in pair.prefill.parts.peers.states()}
        assert states[pair.decode.parts.node] is PeerStage.PROVEN
        await pair.router.serve(request("a", 100))


async def test_a_decode_node_that_forgot_a_prefill_node_is_shaken_hands_with_again() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        pair.tick(advance_s=30)
        await pair.router.name_decode_node()
        pair.tick(advance_s=31)
        assert pair.decode.peers.states() == ()
        while pair.decode.peers.states() == () or pair.decode.peers.states()[0].stage is not PeerStage.PROVEN:
            await pair.router.status()
        await pair.router.serve(request("a", 100))
        await pair.settle()
        pair.require_clean()
