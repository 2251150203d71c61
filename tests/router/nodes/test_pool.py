"""Heartbeats keep requests alive, peers are introduced, and a node's new life is noticed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from twostep.core.fingerprint import Geometry
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.proto import node_pb2 as pb
from twostep.proto.wire import geometry_from_pb
from twostep.router.nodes import client
from twostep.tests.router.cluster import chat_body, cluster, events, say, text_of, until
from twostep.tests.router.fake_nodes import GEOMETRY, FakeDecode, FakePrefill

pytestmark = pytest.mark.processes


async def test_every_heartbeat_lists_every_living_request_also_the_queued(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.p.on_prefill = lambda _: asyncio.get_running_loop().create_future()
        asking = [asyncio.create_task(running.chat()) for _ in range(5)]
        await running.p.prefilling.wait(5)
        ids = sorted(reserve.request.id for reserve in running.d.seen.reserves)
        for node in (running.p, running.d):
            await node.beaten.wait(len(node.seen.beats) + 2)
            assert list(node.seen.beats[-1].live) == ids
            assert node.seen.beats[-1].sequence > node.seen.beats[-2].sequence
            assert node.seen.beats[-1].lease_s == 1.5
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await running.d.cancel_seen.wait(5)
        await running.d.beaten.wait(len(running.d.seen.beats) + 2)
        assert list(running.d.seen.beats[-1].live) == []


async def test_a_prefill_node_that_is_done_no_longer_counts_the_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: running.d.emit(request.id, attempt, b"a")  # type: ignore[method-assign]
        asking = asyncio.create_task(running.chat())
        await running.p.prefilling.wait()

        async def is_only_decoding() -> bool:
            nodes = (await running.http.get("/ready")).json()["nodes"]
            return [node["requests"] for node in nodes] == [0, 1]

        await until(is_only_decoding)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_requests_that_wait_for_a_ticket_count_at_the_prefill_node_they_are_placed_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        all_asked = asyncio.Event()

        async def grant_when_all_have_asked(request: pb.ReserveRequest) -> AsyncIterator[pb.ReserveEvent]:
            if len(running.d.seen.reserves) == 4:
                all_asked.set()
            await all_asked.wait()
            async for event in running.d.grant(request):
                yield event

        running.d.on_reserve = grant_when_all_have_asked
        answers = await asyncio.gather(*(running.chat() for _ in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [len(node.seen.prefills) for node in running.prefill] == [2, 2]


async def test_a_heartbeat_from_before_the_end_of_a_request_does_not_make_its_nodes_look_busy(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2, num_decode=2) as running:

        async def compute_when_heard_of(request: pb.PrefillRequest) -> pb.PrefillReply:
            for node in (running.p, running.d):
                await node.beaten.wait(len(node.seen.beats) + 2)
            return await running.p.compute(request)

        running.p.on_prefill = compute_when_heard_of
        for _ in range(2):
            assert (await running.chat()).status_code == 200
        assert [len(node.seen.prefills) for node in running.prefill] == [2, 0]
        assert [len(node.seen.reserves) for node in running.decode] == [2, 0]


async def test_nodes_that_are_busy_for_other_routers_are_passed_over(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2, num_decode=2) as running:
        running.p.num_foreign = running.d.num_foreign = 3
        for node in (running.p, running.d):
            await node.beaten.wait(len(node.seen.beats) + 2)
        assert (await running.chat()).status_code == 200
        assert [len(node.seen.prefills) for node in running.prefill] == [0, 1]
        assert [len(node.seen.reserves) for node in running.decode] == [0, 1]


async def test_a_pair_that_is_out_of_service_is_passed_over_and_said_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        running.p.suspended[running.d.ref] = "3 copies in 60 s did not match what was sent"

        async def is_known() -> bool:
            return await running.metric("twostep_router_pairs", state="suspended") == 1

        await until(is_known)
        await asyncio.gather(*(running.chat() for _ in range(4)))
        assert [len(node.seen.prefills) for node in running.prefill] == [0, 4]
        assert await running.metric("twostep_router_pairs", state="proven") == 1
    (lost,) = [record for record in caplog.records if "nothing is placed" in record.message]
    assert vars(lost)["reason"] == "3 copies in 60 s did not match what was sent"


async def test_nodes_are_told_their_peers_and_where_to_reach_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        await running.p.beaten.wait(3)
        told = running.p.seen.peers[-1].peers
        assert [(peer.node.id, peer.handoff_address) for peer in told] == [("d0", running.d.address)]

        async def knows_both() -> bool:
            return {peer.node.id for peer in running.d.seen.peers[-1].peers} == {"p0", "p1"}

        await until(knows_both)


async def test_a_node_that_is_still_loading_is_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path, is_ready=False) as running:
        running.d.is_ready = False

        async def is_loading() -> bool:
            nodes = (await running.http.get("/ready")).json()["nodes"]
            return [node["reason"] for node in nodes] == ["", "loading"]

        await until(is_loading)
        assert (await running.chat()).status_code == 503
        running.d.is_ready = True

        async def is_ready() -> bool:
            return (await running.http.get("/ready")).status_code == 200

        await until(is_ready)


async def test_a_node_of_the_wrong_kind_is_never_used(tmp_path: Path) -> None:
    async with cluster(tmp_path, is_ready=False) as running:
        running.p.role = "decode"

        async def is_named() -> bool:
            node = (await running.http.get("/ready")).json()["nodes"][0]
            return not node["ready"] and "is a decode node, configured as prefill" in node["reason"]

        running.p.is_ready = False
        running.p.ref = NodeRef(NodeId("p0"), Incarnation(9))
        await until(is_named)


async def test_a_node_that_cannot_be_understood_is_not_used_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_zero_heads(wire: pb.Geometry) -> Geometry:
        if wire.end_head == 0:
            raise ValueError("no heads")
        return geometry_from_pb(wire)

    async with cluster(tmp_path, num_prefill=2, is_ready=False) as running:
        running.p.ref = NodeRef(NodeId("p0"), Incarnation(9))
        monkeypatch.setattr(client, "geometry_from_pb", refuse_zero_heads)
        running.p.geometry = replace(GEOMETRY, end_head=0)

        async def is_named() -> bool:
            report = (await running.http.get("/ready")).json()
            return report["ready"] and "cannot read: no heads" in report["nodes"][0]["reason"]

        await until(is_named)
        assert (await running.chat()).status_code == 200


async def test_a_node_restarted_at_its_address_is_another_node(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        port = int(running.p.address.rpartition(":")[2])
        running.p.on_prefill = lambda _: asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(running.chat())
        await running.p.prefilling.wait()
        await running.p.stop()
        assert (await asking).status_code == 503
        again = FakePrefill("p0", running.decode, incarnation=2)
        await again.start(port)
        running.prefill.append(again)

        async def is_paired() -> bool:
            pairs = (await running.http.get("/ready")).json()["pairs"]
            return [pair["prefill"] for pair in pairs] == ["p0@2"]

        await until(is_paired)
        assert (await running.chat()).status_code == 200

        async def is_introduced() -> bool:
            return running.d.seen.peers[-1].peers[0].node.incarnation == 2

        await until(is_introduced)


async def test_a_request_waits_for_its_only_decode_node_to_come_back_and_goes_on_there(tmp_path: Path) -> None:
    async with cluster(tmp_path, recovery_wait_s=5.0) as running:
        running.d.answer = lambda request, attempt: running.d.emit(request.id, attempt, b"He")  # type: ignore[method-assign]
        port = int(running.d.address.rpartition(":")[2])
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            lines = reply.aiter_lines()
            assert "assistant" in await anext(lines)
            await running.d.stop()
            again = FakeDecode("d0", incarnation=2)
            say(again, b"Hello")
            running.decode.append(again)
            running.p.know(again)
            await again.start(port)
            rest = "\n".join([line async for line in lines]) + "\n"
        assert text_of(events(rest.lstrip())) == "Hello"
        assert bytes(again.seen.reserves[0].request.output_tokens) == b"He"


async def test_a_prompt_goes_where_its_prefix_was_sent_and_what_is_not_found_there_is_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        first, second = running.prefill
        first.num_foreign = 10_000
        await first.beaten.wait(len(first.seen.beats) + 2)
        long = {"prompt": [7] * 200, "max_tokens": 12}
        assert (await running.http.post("/v1/completions", json=long)).status_code == 200
        first.num_foreign = 0
        await first.beaten.wait(len(first.seen.beats) + 2)
        assert (await running.http.post("/v1/completions", json=long)).status_code == 200
        assert [len(node.seen.prefills) for node in (first, second)] == [0, 2]
        assert (await running.http.post("/v1/completions", json={"prompt": [8] * 200, "max_tokens": 12})).status_code == 200
        assert [len(node.seen.prefills) for node in (first, second)] == [1, 2]
        counted = {
            what: await running.metric("twostep_router_prefix_tokens_total", what=what) for what in ("expected", "missed")
        }
        assert counted == {"expected": 2 * 192, "missed": 2 * 192}
