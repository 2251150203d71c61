"""The application on a real Ray: what Serve does to its replicas, no client notices.

The tests go on with one application and leave it as they found it: one prefill node, one decode node, one router.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from twostep.tests.chaos.questions import Question, undisturbed
from twostep.tests.chaos.streams import Stream, all_over, heard, one_heard
from twostep.tests.chaos.waiting import until
from twostep.tests.ray.serving import (
    ARGS,
    actor_of,
    deploy,
    gauge,
    kill,
    node_pids,
    proven,
    ray_and_serve,
    running,
    under_load,
)

pytestmark = pytest.mark.processes
STREAM_S = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ray_and_serve() as url:
        yield url


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    deploy(ARGS, prefill=1, decode=1)
    await running(prefill=1, decode=1, router=1)
    async with httpx.AsyncClient(base_url=url, timeout=STREAM_S, trust_env=False) as client:
        await proven(client, 1)
        yield client


async def test_prefill_and_decode_are_actors_of_their_own_and_kv_crosses_between_them(http: httpx.AsyncClient) -> None:
    question = Question(1)
    reply = (await http.post("/v1/completions", json={**question.body(), "stream": False, "bill": True})).json()
    (choice,) = reply["choices"]
    assert choice["text"] == undisturbed(question)
    bill = choice["bill"]
    assert bill["bytes_moved"] > 0
    assert bill["decode_computed_tokens"] == 0
    nodes = [*(await node_pids("prefill")), *(await node_pids("decode"))]
    assert len({actor_of(pid) for pid in nodes}) == 2


async def test_a_client_that_leaves_ends_its_request(http: httpx.AsyncClient) -> None:
    stream = Stream(Question(2, max_tokens=400))
    listening = asyncio.create_task(stream.listen(http))
    await heard(stream, 5)
    assert await gauge(http, "twostep_router_in_flight_requests") == 1
    listening.cancel()

    async def missing() -> str:
        num = await gauge(http, "twostep_router_in_flight_requests")
        return f"the end of {num} requests" if num else ""

    await until(missing, within_s=5)


async def test_a_pool_that_grows_and_shrinks_under_load_loses_nothing(http: httpx.AsyncClient) -> None:
    before = await node_pids("decode")
    async with under_load(http) as streams:
        deploy(ARGS, prefill=1, decode=2)
        await running(prefill=1, decode=2, router=1)
        await proven(http, 2)
        assert set(before) < set(await node_pids("decode"))
        deploy(ARGS, prefill=1, decode=1)
        await running(prefill=1, decode=1, router=1)
        await proven(http, 1)
    assert len(streams) > 8
    assert [stream for stream in streams if not stream.is_right] == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_streams_outlive_a_replica_that_is_killed(http: httpx.AsyncClient, role: str) -> None:
    (node,) = await node_pids(role)
    streams = [Stream(Question(number, num_prompt=80, max_tokens=100, salt=role)) for number in range(4)]
    async with asyncio.TaskGroup() as clients:
        for stream in streams:
            clients.create_task(stream.listen(http))
        await one_heard(streams, 10)
        kill(actor_of(node))
        await all_over(streams)
    assert [stream for stream in streams if not stream.is_right] == []
    await running(prefill=1, decode=1, router=1)
    assert node not in await node_pids(role)
