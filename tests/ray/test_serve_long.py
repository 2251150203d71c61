"""What takes longer on a real Ray: new versions, scaling by load, refusals of Serve's own options."""

import os
from collections.abc import Iterator

import grpc
import httpx
import pytest
from ray.util import placement_group_table

from twostep.deploy.ray.agreement import POLICY
from twostep.proto import serving_pb2
from twostep.proto.serving_pb2_grpc import ServingStub
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import Stream
from twostep.tests.chaos.waiting import until
from twostep.tests.ray.serving import (
    ARGS,
    deploy,
    failed,
    free_port,
    node_pids,
    proven,
    ray_and_serve,
    running,
    under_load,
)

pytestmark = [pytest.mark.processes, pytest.mark.long]
STREAM_S = 60.0
SURGE = {"num_replicas": 1, "max_surge_percent": 100}
START_S = 120.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Serve reads it when it is loaded, in its own processes, too.
    os.environ["RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
    with ray_and_serve() as url:
        yield url


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=STREAM_S, trust_env=False)


@pytest.mark.parametrize("pools", [SURGE, {"num_replicas": 1}], ids=["new before old", "old before new"])
async def test_a_new_version_replaces_every_replica_under_load_and_loses_nothing(url: str, pools: dict[str, object]) -> None:
    async with client(url) as http:
        deploy(ARGS, prefill=pools, decode=pools)
        await running(prefill=1, decode=1, router=1)
        await proven(http, 1)
        before = {role: await node_pids(role) for role in ("prefill", "decode")}
        async with under_load(http) as streams:
            new = {**ARGS, "decode": {**ARGS["decode"], "max_queued": 100 + len(pools)}}
            deploy(new, prefill=pools, decode=pools)
            await until(lambda: all_replaced(before), within_s=START_S)
            await running(prefill=1, decode=1, router=1)
            await proven(http, 1)
        assert len(streams) > 8
        assert [stream for stream in streams if not stream.is_right] == []


async def all_replaced(before: dict[str, list[int]]) -> str:
    kept = {role: set(pids) & set(await node_pids(role)) for role, pids in before.items()}
    return f"the end of {kept}" if any(kept.values()) else ""


async def test_a_pool_follows_the_load_of_its_nodes_up_and_down_and_loses_nothing(url: str) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "look_back_period_s": 11,
        "policy": {"policy_function": POLICY},
    }
    async with client(url) as http:
        deploy({**ARGS, "targets": {"decode_requests": 1}}, prefill=1, decode={"autoscaling_config": scaling})
        await running(prefill=1, decode=1, router=1)
        await proven(http, 1)
        async with under_load(http) as streams:
            await running(prefill=1, decode=2, router=1)
            await proven(http, 2)
        await running(prefill=1, decode=1, router=1)
        assert [stream for stream in streams if not stream.is_right] == []


async def test_the_routers_own_doors_answer_too_and_a_node_may_have_bundles_of_a_placement_group(url: str) -> None:
    http_port, grpc_port = free_port(), free_port()
    bundles = {
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 0.1},
        "placement_group_bundles": [{"CPU": 0.1}, {"CPU": 0.1}],
        "placement_group_strategy": "STRICT_PACK",
    }
    deploy({**ARGS, "router": {**ARGS["router"], "port": http_port, "grpc_port": grpc_port}}, prefill=bundles, decode=1)
    await running(prefill=1, decode=1, router=1)
    async with client(f"http://127.0.0.1:{http_port}") as http, grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        await proven(http, 1)
        stream = Stream(Question(3))
        await stream.listen(http)
        assert stream.is_right
        request = serving_pb2.GenerateRequest(text="The capital of France is", stop=serving_pb2.StopRules(max_tokens=5))
        replies = [reply async for reply in ServingStub(channel).Generate(request, timeout=STREAM_S)]
    assert replies[-1].finished.usage.completion_tokens == 5
    groups = [group["bundles"] for group in placement_group_table().values() if group["state"] == "CREATED"]
    assert [list(bundles.values()) for bundles in groups] == [[{"CPU": 0.1}, {"CPU": 0.1}]]


async def test_a_replica_that_serve_would_kill_before_it_has_drained_does_not_start(url: str) -> None:
    deploy({**ARGS, "prefill": {**ARGS["prefill"], "max_queued": 99}}, prefill={"graceful_shutdown_timeout_s": 20}, decode=1)
    told = await failed()
    assert (
        "deployments: prefill: graceful_shutdown_timeout_s is 20, but the replica may take 31 s to leave and drain: raise it"
        in told
    )


async def test_a_wrong_key_ends_the_deployment_in_one_line(url: str) -> None:
    deploy({**ARGS, "modle": "fake"})
    told = await failed()
    assert "args: unknown key modle (value 'fake'), known here: model, engine, prefill, decode, router" in told
