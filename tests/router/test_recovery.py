"""A request outlives its nodes: it goes on elsewhere from the tokens it has, or ends with a typed error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostep.core.errors import (
    ChecksumMismatch,
    EngineFault,
    FingerprintMismatch,
    NodeDraining,
    NodeUnavailable,
    PromptTooLong,
    QueueFull,
    RequestFault,
    ServingError,
)
from twostep.proto import node_pb2 as pb
from twostep.proto.wire import error_to_pb
from twostep.router.nodes.client import NodeClient
from twostep.router.nodes.health import FAILURES_IN_A_ROW
from twostep.tests.router.cluster import Cluster, chat_body, cluster, events, say, text_of, until
from twostep.tests.router.fake_nodes import FakeDecode, FakePrefill

pytestmark = pytest.mark.processes
FORGOTTEN_BEATS = 4
"""So many heartbeats, at whatever pace they come, tell a router for certain that a node has forgotten a request."""


def fail_prefill(node: FakePrefill, error: ServingError) -> None:
    async def refuse(_: pb.PrefillRequest) -> pb.PrefillReply:
        raise error

    node.on_prefill = refuse


def hang_prefill(node: FakePrefill) -> None:
    node.on_prefill = lambda _: asyncio.get_running_loop().create_future()


def refuse_reserve(node: FakeDecode, error: ServingError) -> None:
    async def refuse(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
        raise error
        yield

    node.on_reserve = refuse


def say_part(node: FakeDecode, tokens: bytes) -> None:
    """Answer only the first part and never end."""
    node.answer = lambda request, attempt: node.emit(request.id, attempt, tokens)  # type: ignore[method-assign]


async def content(running: Cluster) -> str:
    reply = await running.chat()
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


async def nothing_is_left(running: Cluster) -> None:
    """Wait until no node is listed with a living request: the sign that everything was let go."""

    async def is_empty() -> bool:
        nodes = (await running.http.get("/ready")).json()["nodes"]
        return all(node["requests"] == 0 for node in nodes)

    await until(is_empty)


@pytest.mark.parametrize("error", [NodeUnavailable("gone"), ChecksumMismatch("block 3")])
async def test_a_failed_prefill_is_done_again_on_another_node_for_the_same_reservation(
    tmp_path: Path, error: ServingError
) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        fail_prefill(running.p, error)
        assert await content(running) == "Hello, world"
        first, second = running.d.seen.reserves
        assert (first.attempt, second.attempt) == (1, 2)
        assert (first.prefill_node.id, second.prefill_node.id) == ("p0", "p1")
        assert first.request == second.request
        assert running.d.seen.cancelled == []
        assert await running.metric("twostep_router_retries_total", blame="prefill", code=error.code) == 1
        await nothing_is_left(running)


async def test_a_prefill_nodes_refusal_ends_the_decode_leg_at_once_and_is_the_clients_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        fail_prefill(running.p, PromptTooLong("the prompt has 19 tokens, 18 fit here", param="messages"))
        reply = await running.chat()
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "the prompt has 19 tokens, 18 fit here"
        assert reply.json()["error"]["code"] == "prompt_too_long"
        await running.d.cancel_seen.wait()
        assert running.d.seen.cancelled == [running.d.seen.reserves[0].request.id]
        assert len(running.d.seen.reserves) == 1
        await nothing_is_left(running)


async def test_a_prefill_node_that_dies_is_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        hang_prefill(running.p)
        asking = asyncio.create_task(content(running))
        await running.p.prefilling.wait()
        await running.p.stop()
        assert await asking == "Hello, world"
        assert [reserve.attempt for reserve in running.d.seen.reserves] == [1, 2]


async def test_a_lost_prefill_node_that_was_the_last_ends_in_an_error(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        fail_prefill(running.p, NodeUnavailable("gone"))
        reply = await running.chat()
        assert reply.status_code == 503
        assert reply.json()["error"] == {
            "message": "gone",
            "type": "server_error",
            "param": None,
            "code": "node_unavailable",
        }
        await running.d.cancel_seen.wait()


def drain_at_the_next_reservation(node: FakeDecode) -> None:
    async def drain(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
        node.is_ready = False
        raise NodeDraining(f"{node.ref} takes nothing new")
        yield

    node.on_reserve = drain


async def test_a_request_that_meets_the_last_node_as_it_drains_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        drain_at_the_next_reservation(running.d)
        reply = await running.chat()
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "no_ready_node"


async def test_a_request_that_meets_the_last_node_as_it_drains_waits_and_is_counted_as_a_new_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, node_wait_s=30.0) as running:
        drain_at_the_next_reservation(running.d)
        asked = asyncio.create_task(content(running))

        async def is_counted() -> bool:
            return await running.metric("twostep_router_waiting_requests") == 1

        await until(is_counted)
        running.d.on_reserve, running.d.is_ready = running.d.grant, True
        assert await asked == "Hello, world"
        assert await running.metric("twostep_router_waiting_requests") == 0


async def test_a_decode_node_that_frees_the_blocks_while_no_prefill_node_is_there_costs_no_attempt(tmp_path: Path) -> None:
    async with cluster(tmp_path, recovery_wait_s=30.0, max_attempts=2, hedge_after_s=60.0) as running:

        async def drain_first(request: pb.PrefillRequest) -> pb.PrefillReply:
            if request.ticket.leg.attempt == 1:
                running.p.is_ready = False
                running.d.unknown.add(request.request.id)
                raise NodeDraining("told to stop")
            return await running.p.compute(request)

        running.p.on_prefill = drain_first
        asking = asyncio.create_task(content(running))
        await running.p.prefilling.wait()
        await running.d.beaten.wait(len(running.d.seen.beats) + FORGOTTEN_BEATS)
        running.d.unknown.clear()
        running.p.is_ready = True
        assert await asking == "Hello, world"
        assert [reserve.attempt for reserve in running.d.seen.reserves] == [1, 2]
        assert await running.metric("twostep_router_ignored_messages_total", why="old_attempt") == 1


async def test_a_prefill_node_that_could_not_be_reached_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, recovery_wait_s=5.0) as running:

        async def recover(request: pb.PrefillRequest) -> pb.PrefillReply:
            if request.ticket.leg.attempt == 1:
                raise NodeUnavailable("the connection broke")
            return await running.p.compute(request)

        running.p.on_prefill = recover
        assert await content(running) == "Hello, world"


async def test_a_decode_node_that_dies_is_replaced_and_its_tokens_are_forced(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        say_part(running.d, b"Hello")
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            lines = reply.aiter_lines()
            async for line in lines:
                if '"content":"o"' in line:
                    break
            await running.d.stop()
            rest = "\n".join([line async for line in lines])
        assert rest.rstrip().endswith("data: [DONE]")
        assert text_of(events(rest.lstrip() + "\n")) == ", world"
        second = running.decode[1].seen.reserves[0]
        assert second.attempt == 2
        assert bytes(second.request.output_tokens) == b"Hello"
        assert bytes(running.p.seen.prefills[1].request.output_tokens) == b"Hello"


async def test_a_decode_node_that_refuses_is_passed_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        refuse_reserve(running.d, QueueFull("full", retry_after_s=3))
        assert await content(running) == "Hello, world"
        assert len(running.decode[1].seen.reserves) == 1


async def test_when_every_decode_node_is_full_the_client_is_told_when_to_return(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        for node in running.decode:
            refuse_reserve(node, QueueFull("full", retry_after_s=3))
        reply = await running.chat()
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
        assert [len(node.seen.reserves) for node in running.decode] == [1, 1]


async def test_a_request_that_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        refuse_reserve(running.d, PromptTooLong("the prompt needs 9 blocks, the pool has 8", param="messages"))
        reply = await running.chat()
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "the prompt needs 9 blocks, the pool has 8"
        assert running.decode[1].seen.reserves == []


async def test_nodes_whose_fingerprints_differ_are_never_paired_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        fail_prefill(running.p, FingerprintMismatch("rope differs", param="rope"))
        assert await content(running) == "Hello, world"
        assert await content(running) == "Hello, world"
        assert len(running.p.seen.prefills) == 1


async def test_the_number_of_attempts_is_bounded(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        for node in running.prefill:
            fail_prefill(node, ChecksumMismatch("block 3"))
        reply = await running.chat()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "checksum_mismatch")
        assert [reserve.attempt for reserve in running.d.seen.reserves] == [1, 2, 3, 4, 5]


async def test_beyond_the_routers_budget_a_failure_is_the_clients_answer_and_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2, retry_share=0.0, retry_reserve=2) as running:
        for node in running.prefill:
            fail_prefill(node, ChecksumMismatch("block 3"))
        for _ in range(3):
            assert (await running.chat()).json()["error"]["code"] == "checksum_mismatch"
        assert len(running.d.seen.reserves) == 5
        assert await running.metric("twostep_router_retries_refused_total", code="checksum_mismatch") == 3
        await nothing_is_left(running)


async def test_twenty_requests_that_a_prefill_node_refuses_cost_it_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, retry_share=0.0, retry_reserve=1) as running:
        compute = running.p.on_prefill
        fail_prefill(running.p, PromptTooLong("the prompt has 19 tokens, 18 fit here"))
        replies = await asyncio.gather(*(running.chat() for _ in range(20)))
        assert [reply.status_code for reply in replies] == [400] * 20
        assert len(running.p.seen.prefills) == len(running.d.seen.reserves) == 20
        running.p.on_prefill = compute
        assert await content(running) == "Hello, world"
        assert await running.metric("twostep_router_retries_refused_total", code="prompt_too_long") == 0
        await nothing_is_left(running)


async def test_a_failure_in_mid_stream_is_an_error_event_and_the_end(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:

        def answer(request: pb.GenerateRequest, attempt: int) -> None:
            running.d.emit(request.id, attempt, b"He")
            running.d.fail(request.id, attempt, RequestFault("NaN in the logits"))

        running.d.answer = answer  # type: ignore[method-assign]
        reply = await running.chat(stream=True)
        assert reply.status_code == 200
        chunks = events(reply.text)
        assert chunks[-1]["error"]["message"] == "NaN in the logits"
        assert text_of(chunks[:-1]) == "He"


async def test_tokens_that_come_with_a_failure_are_shown_before_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:

        def answer(request: pb.GenerateRequest, attempt: int) -> None:
            token = pb.Token(request=request.id, attempt=attempt, token=ord("H"))
            ended = pb.Ended(request=request.id, attempt=attempt, error=error_to_pb(RequestFault("NaN in the logits")))
            running.d.send(pb.TokenBatch(tokens=[token], ended=[ended]))

        running.d.answer = answer  # type: ignore[method-assign]
        chunks = events((await running.chat(stream=True)).text)
        assert text_of(chunks[:-1]) == "H"
        assert chunks[-1]["error"]["code"] == "request_fault"


async def test_an_end_without_a_reason_that_is_known_is_an_error_not_a_crash(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say(running.d, b"H", "fell_asleep")
        reply = await running.chat()
        assert reply.status_code == 500
        assert "'fell_asleep'" in reply.json()["error"]["message"]
        say(running.d, b"Hello")
        assert await content(running) == "Hello"


async def test_a_fault_of_the_routers_own_ends_the_request_instead_of_leaving_it_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    async with cluster(tmp_path) as running:
        monkeypatch.setattr(NodeClient, "prefill", fail)
        reply = await running.chat()
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
        await running.d.cancel_seen.wait()


async def test_only_the_current_attempts_next_token_is_taken(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:

        def answer(request: pb.GenerateRequest, attempt: int) -> None:
            running.d.emit(request.id, attempt, b"ab")
            running.d.emit(request.id, attempt, b"ab")
            running.d.emit(request.id, attempt - 1, b"x", first=2)
            running.d.emit("req-somebody-else", attempt, b"y", first=2)
            running.d.emit(request.id, attempt, b"c", first=2)
            running.d.finish(request.id, attempt)

        running.d.answer = answer  # type: ignore[method-assign]
        assert await content(running) == "abc"
        assert await running.metric("twostep_router_ignored_messages_total", why="duplicate_token") == 2
        assert await running.metric("twostep_router_ignored_messages_total", why="old_attempt") == 1


async def test_tokens_lost_on_the_way_are_drawn_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        tokens = b"Hello, world"

        def answer(request: pb.GenerateRequest, attempt: int) -> None:
            running.d.emit(request.id, attempt, tokens[:3])
            running.d.emit(request.id, attempt, tokens[5:], first=5)
            say(running.d, tokens)

        running.d.answer = answer  # type: ignore[method-assign]
        assert await content(running) == "Hello, world"
        assert bytes(running.d.seen.reserves[1].request.output_tokens) == b"Hel"


async def test_a_stream_that_breaks_is_opened_again_and_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say_part(running.d, b"He")
        asking = asyncio.create_task(content(running))
        await running.p.prefilling.wait()
        running.d.break_stream()
        await running.d.streaming.wait(2)
        request = running.d.seen.reserves[0].request.id
        running.d.emit(request, 1, b"y!", first=2)
        running.d.finish(request, 1)
        assert await asking == "Hey!"


async def test_a_request_that_its_node_has_forgotten_goes_on_elsewhere(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        say_part(running.d, b"He")
        asking = asyncio.create_task(content(running))
        await running.p.prefilling.wait()
        running.d.unknown.add(running.d.seen.reserves[0].request.id)
        assert await asking == "Hello, world"
        assert len(running.decode[1].seen.reserves) == 1


async def test_a_node_that_answers_no_heartbeat_for_a_lease_is_given_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        hang_prefill(running.p)
        asking = asyncio.create_task(content(running))
        await running.p.prefilling.wait()
        running.p.freeze()
        assert await asking == "Hello, world"


async def test_a_request_past_its_deadline_ends_on_both_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path, request_timeout_s=2) as running:
        hang_prefill(running.p)
        reply = await running.chat()
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
        await asyncio.gather(running.d.cancel_seen.wait(), running.p.cancel_seen.wait())


async def leave_after(running: Cluster, ready: Sequence[asyncio.Task[None]], *, stream: bool) -> None:
    """Ask, and go away as soon as `ready` is done."""
    asking = asyncio.create_task(running.chat(stream=stream))
    await asyncio.gather(*ready)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_during_prefill_ends_both_legs(tmp_path: Path, stream: bool) -> None:
    async with cluster(tmp_path) as running:
        hang_prefill(running.p)
        await leave_after(running, [asyncio.create_task(running.p.prefilling.wait())], stream=stream)
        await asyncio.gather(running.d.cancel_seen.wait(), running.p.cancel_seen.wait())
        request = running.d.seen.reserves[0].request.id
        assert running.d.seen.cancelled == running.p.seen.cancelled == [request]
        await nothing_is_left(running)
        assert await running.metric("twostep_router_requests_total", outcome="client_gone") == 1


async def test_a_client_that_leaves_while_queued_gives_up_its_place(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        queued, left = asyncio.Event(), asyncio.Event()

        async def queue(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            try:
                yield pb.ReserveEvent(queued=pb.Queued(position=3))
                queued.set()
                await asyncio.get_running_loop().create_future()
            finally:
                left.set()

        running.d.on_reserve = queue
        await leave_after(running, [asyncio.create_task(_wait(queued))], stream=True)
        await asyncio.wait_for(left.wait(), 5)
        await running.d.cancel_seen.wait()


async def test_a_client_that_leaves_in_mid_stream_ends_the_decoding(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say_part(running.d, b"He")
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            assert "assistant" in await anext(reply.aiter_lines())
        await running.d.cancel_seen.wait()
        await nothing_is_left(running)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def never_answer_reserve(node: FakeDecode) -> None:
    async def hang(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
        await asyncio.get_running_loop().create_future()
        yield

    node.on_reserve = hang


async def test_a_decode_node_that_says_nothing_to_a_reservation_loses_it_to_another_and_keeps_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2, hedge_after_s=0.01) as running:
        never_answer_reserve(running.d)
        assert await content(running) == "Hello, world"
        [silent], [answered] = running.d.seen.reserves, running.decode[1].seen.reserves
        assert (silent.attempt, answered.attempt) == (1, 2)
        await running.d.cancel_seen.wait()
        assert running.d.seen.cancelled == [silent.request.id]
        assert await running.metric("twostep_router_hedges_total", what="asked") == 1
        await nothing_is_left(running)


async def test_the_slower_of_two_that_grant_is_told_to_let_go(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2, hedge_after_s=0.01) as running:
        asked = asyncio.Event()

        async def grant_when_the_other_is_asked(request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            await asked.wait()
            async for event in running.d.grant(request):
                yield event

        async def ask(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            asked.set()
            await asyncio.get_running_loop().create_future()
            yield

        running.d.on_reserve, running.decode[1].on_reserve = grant_when_the_other_is_asked, ask
        assert await content(running) == "Hello, world"
        await running.decode[1].cancel_seen.wait()
        assert running.d.seen.cancelled == []
        await nothing_is_left(running)


async def attempts_of(running: Cluster, reply: httpx.Response) -> list[tuple[str, str]]:
    """Return the decode node of each attempt, and why it failed."""
    told = (await running.http.get(f"/requests/{reply.headers['x-request-id']}")).json()
    return [(one["decode"]["node"].partition("@")[0], one["error"]) for one in told["attempts"]]


async def test_a_reservation_that_breaks_off_while_another_node_is_asked_as_well_is_let_go(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2, hedge_after_s=0.01) as running:
        other = running.decode[1]
        asked = asyncio.Event()

        async def break_off(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            await asked.wait()
            raise NodeUnavailable("the connection broke")
            yield

        async def grant_when_the_first_is_let_go(request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            asked.set()
            await running.d.cancel_seen.wait()
            async for event in other.grant(request):
                yield event

        running.d.on_reserve, other.on_reserve = break_off, grant_when_the_first_is_let_go
        reply = await running.chat()
        assert reply.status_code == 200
        assert await attempts_of(running, reply) == [("d0", "the connection broke"), ("d1", "")]


async def test_why_an_attempt_has_failed_is_told_of_that_one_though_another_was_made_after_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2, hedge_after_s=0.01) as running:
        asked = asyncio.Event()

        async def grant_when_the_other_is_asked(request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            await asked.wait()
            async for event in running.d.grant(request):
                yield event

        async def ask(_: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            asked.set()
            await asyncio.get_running_loop().create_future()
            yield

        running.d.on_reserve, running.decode[1].on_reserve = grant_when_the_other_is_asked, ask
        fail_prefill(running.p, RequestFault("NaN in the logits"))
        reply = await running.chat()
        assert reply.status_code == 500
        assert await attempts_of(running, reply) == [("d0", "NaN in the logits"), ("d1", "another node was faster")]


async def test_where_there_is_no_other_node_nobody_is_asked_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path, hedge_after_s=0.01) as running:
        asked = asyncio.create_task(running.chat())
        answer = asyncio.Event()

        async def grant_late(request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            await answer.wait()
            async for event in running.d.grant(request):
                yield event

        running.d.on_reserve = grant_late

        async def is_counted() -> bool:
            return await running.metric("twostep_router_hedges_total", what="no_other_node") == 1

        await until(is_counted)
        answer.set()
        assert (await asked).status_code == 200
        assert len(running.d.seen.reserves) == 1


async def test_a_node_that_fails_again_and_again_rests_and_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_attempts=1, recovery_wait_s=0.0) as running:
        fail_prefill(running.p, EngineFault("it is broken"))
        failed = [(await running.chat()).json()["error"]["code"] for _ in range(FAILURES_IN_A_ROW)]
        assert failed == ["engine_fault"] * FAILURES_IN_A_ROW
        assert (await running.chat()).json()["error"]["code"] == "no_ready_node"
        running.p.on_prefill = running.p.compute

        async def is_back() -> bool:
            return (await running.chat()).status_code == 200

        await until(is_back)
        assert await content(running) == "Hello, world"
