"""Nodes come and go while the router serves: what is placed on them, what they finish, and what is known of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from twostep.tests.router.cluster import Cluster, chat_body, cluster, events, name_nodes, say, text_of, until
from twostep.tests.router.fake_nodes import FakeDecode, FakePrefill

pytestmark = pytest.mark.processes


async def nodes_of(running: Cluster) -> list[dict[str, Any]]:
    report = await running.http.get("/ready")
    return sorted(report.json()["nodes"], key=lambda node: (node["role"] == "decode", node["node"] or ""))


def seen(running: Cluster, *expected: tuple[str, bool]) -> Callable[[], Awaitable[bool]]:
    """Return whether these are the nodes that the router knows, each with whether it is ready."""

    async def is_seen() -> bool:
        return [(node["node"], node["ready"]) for node in await nodes_of(running)] == list(expected)

    return is_seen


async def test_a_node_that_is_named_later_is_met_told_of_and_used(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True) as running:
        late = FakePrefill("p1", running.decode)
        await late.start()
        running.prefill.append(late)
        name_nodes(tmp_path, [*running.prefill, running.d])
        await until(seen(running, ("p0@1", True), ("p1@1", True), ("d0@1", True)))
        running.p.num_foreign = 5
        await running.p.beaten.wait(len(running.p.seen.beats) + 2)
        assert (await running.chat()).status_code == 200
        assert len(late.seen.prefills) == 1

        async def is_told_of() -> bool:
            return {peer.node.id for peer in running.d.seen.peers[-1].peers} == {"p0", "p1"}

        await until(is_told_of)


@pytest.mark.parametrize("still_named", [True, False])
async def test_a_node_that_leaves_finishes_what_it_has_gets_no_more_and_is_then_forgotten(
    tmp_path: Path, still_named: bool
) -> None:
    async with cluster(tmp_path, num_decode=2, by_file=True) as running:
        old, new = running.decode
        old.answer = lambda request, attempt: old.emit(request.id, attempt, b"He")  # type: ignore[method-assign]
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            lines = reply.aiter_lines()
            assert "assistant" in await anext(lines)
            rest = [running.p, *running.decode] if still_named else [running.p, new]
            name_nodes(tmp_path, rest, leaving=[old])
            await until(seen(running, ("p0@1", True), ("d0@1", False), ("d1@1", True)))
            for _ in range(3):
                assert (await running.chat()).json()["choices"][0]["message"]["content"] == "Hello, world"
            assert [len(node.seen.reserves) for node in (old, new)] == [1, 3]
            request = old.seen.reserves[0].request.id
            old.emit(request, 1, b"llo", first=2)
            old.finish(request, 1, num_tokens=5)
            assert text_of(events("\n".join([line async for line in lines]).lstrip() + "\n")) == "Hello"
        name_nodes(tmp_path, [running.p, new])
        await until(seen(running, ("p0@1", True), ("d1@1", True)))
        assert await running.metric("twostep_router_node_ready", address=old.address) == 0
        assert old.address not in (await running.http.get("/metrics")).text


async def test_a_node_that_is_named_again_before_it_has_left_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True) as running:
        name_nodes(tmp_path, [running.p, running.d], leaving=[running.d])
        await until(seen(running, ("p0@1", True)))
        name_nodes(tmp_path, [running.p, running.d])
        await until(seen(running, ("p0@1", True), ("d0@1", True)))
        assert (await running.chat()).status_code == 200


async def test_a_lost_node_that_is_no_longer_named_costs_its_requests_only_a_new_attempt(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_decode=2, by_file=True, recovery_wait_s=5.0) as running:
        old, new = running.decode
        old.answer = lambda request, attempt: old.emit(request.id, attempt, b"He")  # type: ignore[method-assign]
        say(new, b"Hello")
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            lines = reply.aiter_lines()
            assert "assistant" in await anext(lines)
            await old.stop()
            name_nodes(tmp_path, [running.p, new])
            assert text_of(events("\n".join([line async for line in lines]).lstrip() + "\n")) == "Hello"
        await until(seen(running, ("p0@1", True), ("d1@1", True)))


async def test_whoever_answers_at_a_pods_address_under_another_name_is_not_that_pod(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True, is_ready=False) as running:
        stranger = FakeDecode("somebody")
        await stranger.start()
        running.decode.append(stranger)
        listed = (tmp_path / "nodes.json").read_text().replace(running.d.address, stranger.address)
        (tmp_path / "nodes.json").write_text(listed)

        async def is_refused() -> bool:
            nodes = await nodes_of(running)
            return any(node["reason"] == f"{stranger.address} is somebody, expected d0" for node in nodes)

        await until(is_refused)


async def test_the_list_of_nodes_may_be_out_of_date_but_the_router_serves_and_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True) as running:
        (tmp_path / "nodes.json").write_text("{")

        async def is_told() -> bool:
            return "cannot be read" in (await running.http.get("/ready")).json()["discovery"]["trouble"]

        await until(is_told)
        assert (await running.chat()).status_code == 200
        assert await running.metric("twostep_router_discovery_stale_seconds") > 0
        name_nodes(tmp_path, [running.p, running.d])

        async def is_current() -> bool:
            return await running.metric("twostep_router_discovery_stale_seconds") == 0

        await until(is_current)


async def test_without_nodes_the_router_waits_for_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=0, num_decode=0, by_file=True, is_ready=False) as running:
        assert (await running.http.get("/ready")).status_code == 503
        assert (await running.chat()).status_code == 503
        decode = FakeDecode("d0")
        say(decode, b"Hello")
        prefill = FakePrefill("p0", [decode])
        running.decode.append(decode)
        running.prefill.append(prefill)
        await asyncio.gather(decode.start(), prefill.start())
        name_nodes(tmp_path, [prefill, decode])
        await until(seen(running, ("p0@1", True), ("d0@1", True)))
        assert (await running.chat()).status_code == 200
