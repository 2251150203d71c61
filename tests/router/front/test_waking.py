"""Requests that arrive while there are no nodes: they wait, they are counted, and they are served when nodes come."""

import asyncio
from pathlib import Path

import pytest

from twostep.tests.router.cluster import Cluster, cluster, name_nodes, until

pytestmark = pytest.mark.processes


async def without_nodes(tmp_path: Path, running: Cluster) -> None:
    name_nodes(tmp_path, [])

    async def are_gone() -> bool:
        return (await running.http.get("/ready")).json()["nodes"] == []

    await until(are_gone)


async def test_a_request_wakes_and_is_served_when_nodes_have_come(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True, node_wait_s=30.0) as running:
        await without_nodes(tmp_path, running)
        assert (await running.http.get("/ready")).status_code == 200
        asked = asyncio.create_task(running.chat())

        async def is_counted() -> bool:
            return await running.metric("twostep_router_waiting_requests") == 1

        await until(is_counted)
        name_nodes(tmp_path, [running.p, running.d])
        assert (await asked).json()["choices"][0]["message"]["content"] == "Hello, world"
        assert await running.metric("twostep_router_waiting_requests") == 0
        assert await running.metric("twostep_router_arrived_prompt_tokens_count") == 1


async def test_a_client_that_leaves_while_there_are_no_nodes_wakes_none(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True, node_wait_s=600.0) as running:
        await without_nodes(tmp_path, running)
        asked = asyncio.create_task(running.chat())

        async def is_counted() -> bool:
            return await running.metric("twostep_router_waiting_requests") == 1

        async def is_over() -> bool:
            return await running.metric("twostep_router_requests_total", outcome="client_gone") == 1

        await until(is_counted)
        asked.cancel()
        await until(is_over)
        assert await running.metric("twostep_router_waiting_requests") == 0


async def test_a_request_that_has_waited_long_enough_is_refused_and_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True, node_wait_s=0.02) as running:
        await without_nodes(tmp_path, running)
        assert (await running.chat()).status_code == 503
        assert await running.metric("twostep_router_waiting_requests") == 0
        assert await running.metric("twostep_router_requests_total", outcome="no_ready_node") == 1


async def test_where_nothing_may_wait_a_router_without_nodes_is_not_ready(tmp_path: Path) -> None:
    async with cluster(tmp_path, by_file=True) as running:
        await without_nodes(tmp_path, running)
        assert (await running.http.get("/ready")).status_code == 503
        assert (await running.chat()).status_code == 503
