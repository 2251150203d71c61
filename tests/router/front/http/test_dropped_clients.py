"""Clients that vanish at random moments leave nothing behind: no request, no memory, nobody else's error."""

import asyncio
import random
from pathlib import Path

import pytest

from twostep.proto import node_pb2 as pb
from twostep.tests.router.cluster import Cluster, cluster, until
from twostep.tests.router.front.http.raw_http import chat_request, connection, memory, post

pytestmark = pytest.mark.processes

SEED = 20
AT_ONCE = 40
MAX_GROWTH_BYTES = 40 << 20


async def test_a_thousand_dropped_connections_leave_no_live_request(tmp_path: Path) -> None:
    # Clients, router and nodes share one event loop here: heartbeats get the time that a storm of clients takes.
    async with cluster(tmp_path, num_prefill=2, num_decode=2, lease_s=9.0) as running:
        answer_at_random(running, random.Random(SEED))
        await drop_clients(running, random.Random(SEED), 300)
        await until_nothing_lives(running)
        before = memory()
        await drop_clients(running, random.Random(SEED + 1), 1000)
        await until_nothing_lives(running)
        assert memory() - before < MAX_GROWTH_BYTES
        for node in running.decode:
            node.answer = lambda request, attempt, node=node: finish(node, request, attempt)  # type: ignore[method-assign]
        assert {(await running.chat()).status_code for _ in range(10)} == {200}


async def drop_clients(running: Cluster, chance: random.Random, count: int) -> None:
    """Let `count` clients come and go, some at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            await drop_client(running, chance)

    async with asyncio.TaskGroup() as clients:
        for _ in range(count):
            clients.create_task(one())


async def drop_client(running: Cluster, chance: random.Random) -> None:
    """Send a request, or a part of it, read a part of the reply, and leave: by a reset, or by hanging up."""
    request = chance.choice([chat_request(stream=True), chat_request(), chat_request(stream=True) * 3, post(b"{" * 999)])
    cut = chance.choice([len(request), chance.randrange(len(request))])
    num_read = chance.choice([0, 1, 300, 100_000])
    async with connection(running) as client:
        await client.send(request[:cut])
        try:
            async with asyncio.timeout(chance.random() * 0.05):
                await client.reader.readexactly(num_read)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        if chance.random() < 0.5:
            client.reset()


def answer_at_random(running: Cluster, chance: random.Random) -> None:
    """Let every decode node answer some requests fully, some in part, and some not at all."""
    for node in running.decode:

        def answer(request: pb.GenerateRequest, attempt: int, node=node) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
            what = chance.randrange(3)
            if what:
                node.emit(request.id, attempt, b"Hello, world"[: chance.randrange(1, 12)])
            if what == 2:
                finish(node, request, attempt)

        node.answer = answer


def finish(node, request: pb.GenerateRequest, attempt: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    node.emit(request.id, attempt, b"Hello, world")
    node.finish(request.id, attempt, num_tokens=12)


async def until_nothing_lives(running: Cluster) -> None:
    """Wait until the router serves nothing, lists nothing in its heartbeats, and has told the nodes of every end."""

    async def is_idle() -> bool:
        return await running.metric("twostep_router_in_flight_requests") == 0

    async def is_forgotten() -> bool:
        return not any(node.seen.beats[-1].live for node in (*running.prefill, *running.decode))

    async def is_told() -> bool:
        return not any(task.get_coro().__qualname__ == "NodePool._cancel" for task in asyncio.all_tasks())

    await until(is_idle)
    await until(is_forgotten)
    await until(is_told)
