"""Requests for which there is no room wait in the router, in order, or are told when to come back: before any work."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostep.tests.router.cluster import Cluster, cluster, until

pytestmark = pytest.mark.processes

HALF = {"ahead_s": 0.011, "queue_s": 60.0}
"""Nodes that have not measured themselves take a token for 0.1 ms: a prompt of 100 tokens is all that is sent ahead."""


def ask(running: Cluster, token: int, headers: dict[str, str] | None = None, **fields: Any) -> "asyncio.Task[httpx.Response]":
    body = {"prompt": [token] * 100, "max_tokens": 12, **fields}
    return asyncio.create_task(running.http.post("/v1/completions", json=body, headers=headers or {}))


async def hold_first(running: Cluster) -> tuple["asyncio.Task[httpx.Response]", asyncio.Event]:
    """Send a request whose prefill ends only when the event is set."""
    may_end = asyncio.Event()

    async def compute(request: Any) -> Any:
        await may_end.wait()
        return await running.p.compute(request)

    running.p.on_prefill = compute
    first = ask(running, 1)
    await running.p.prefilling.wait()
    return first, may_end


async def queued(running: Cluster, count: int) -> None:
    async def are_waiting() -> bool:
        return await running.metric("twostep_router_queued_requests") == count

    await until(are_waiting)


async def test_what_waits_is_sent_by_priority_when_there_is_room(tmp_path: Path) -> None:
    async with cluster(tmp_path, **HALF) as running:
        first, may_end = await hold_first(running)
        others = []
        for token, headers in ((2, {}), (3, {"twostep-priority": "-1"}), (4, {"x-deadline-ms": "50000"})):
            others.append(ask(running, token, headers))
            await queued(running, len(others))
        assert len(running.d.seen.reserves) == 1
        may_end.set()
        assert {(await one).status_code for one in (first, *others)} == {200}
        assert [reserve.request.prompt[0] for reserve in running.d.seen.reserves] == [1, 3, 4, 2]
        assert [reserve.request.level.priority for reserve in running.d.seen.reserves] == [0, -1, 0, 0]
        assert await running.metric("twostep_router_queue_wait_seconds_count") == 4


async def test_who_would_wait_too_long_is_told_when_to_come_back_and_no_node_hears_of_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, ahead_s=0.011, queue_s=0.005) as running:
        first, may_end = await hold_first(running)
        refused = await ask(running, 2)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert len(running.d.seen.reserves) == 1
        assert await running.metric("twostep_router_admission_refused_total") == 1
        may_end.set()
        assert (await first).status_code == 200


async def test_a_client_that_leaves_the_queue_takes_no_ones_place(tmp_path: Path) -> None:
    async with cluster(tmp_path, **HALF) as running:
        first, may_end = await hold_first(running)
        second = ask(running, 2)
        await queued(running, 1)
        second.cancel()
        await queued(running, 0)
        may_end.set()
        assert (await first).status_code == 200
        assert (await ask(running, 3)).status_code == 200
        assert [reserve.request.prompt[0] for reserve in running.d.seen.reserves] == [1, 3]


async def test_a_deadline_ends_a_request_that_waits(tmp_path: Path) -> None:
    async with cluster(tmp_path, **HALF) as running:
        first, may_end = await hold_first(running)
        late = await ask(running, 2, {"x-deadline-ms": "200"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        may_end.set()
        assert (await first).status_code == 200


async def test_a_wish_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        wrong = await ask(running, 1, {"x-slo-ttft-ms": "fast"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-slo-ttft-ms")
        wrong = await ask(running, 1, priority=5_000_000)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "priority")
