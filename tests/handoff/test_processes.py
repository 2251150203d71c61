"""Both nodes as real processes, KV over NIXL between them."""

import asyncio
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from twostep.core.errors import NodeUnavailable
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import open_channel
from twostep.tests.handoff.mini_router import MiniRouter
from twostep.tests.handoff.node_process import NodeProcess, running_process, start
from twostep.tests.handoff.requests import MODEL, request
from twostep.tests.handoff.solo import Solo
from twostep.tests.router.cluster import until

pytestmark = pytest.mark.processes
SETTINGS = ("engine.dtype=float32", "timers.progress_s=2", "timers.lease_s=60")


@asynccontextmanager
async def running_nodes(folder: Path) -> AsyncIterator[tuple[NodeProcess, NodeProcess, MiniRouter]]:
    async with AsyncExitStack() as stack:
        prefill, decode = [
            await stack.enter_async_context(running_process(role, folder, *SETTINGS)) for role in ("prefill", "decode")
        ]
        router = MiniRouter(prefill.stubs, decode.stubs, (prefill.description, decode.description))
        await router.introduce()
        collecting = asyncio.ensure_future(router.collect())
        stack.callback(collecting.cancel)
        yield prefill, decode, router


def scrape(node: NodeProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{node.address['metrics']}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("twostep_")}


async def test_two_processes_answer_as_one_engine_and_exit_when_told(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (prefill, decode, router):
        requests = [request(name, length) for name, length in (("a", 31), ("b", 100), ("c", 257), ("d", 100))]
        served = await asyncio.gather(*(router.serve(one) for one in requests))
        assert [one.tokens for one in served] == [Solo(MODEL).answer(one)[0] for one in requests]
        pages = [await asyncio.to_thread(scrape, node) for node in (prefill, decode)]
        assert pages[0]["twostep_prompt_tokens_computed_total"] == 31 + 100 + 257 + 100
        assert pages[1]["twostep_prompt_tokens_computed_total"] == 0
        block_bytes = 32 * MODEL.num_layers * MODEL.num_kv_heads * 2 * MODEL.head_dim * 4
        assert [page["twostep_handoff_bytes_total"] for page in pages] == [(1 + 4 + 9 + 4) * block_bytes] * 2
        for page in pages:
            assert page['twostep_kv_blocks{state="referenced"}'] == 0
        for node in (prefill, decode):
            node.process.terminate()
            assert await node.process.wait() == 0


async def test_a_killed_prefill_node_costs_its_request_and_no_other(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (prefill, _, router):
        granted = await router.grant(request("a", 100))
        prefill.process.send_signal(signal.SIGSTOP)
        prefilling = asyncio.ensure_future(router.prefill(request("a", 100), granted.ticket))
        alone = await router.serve(request("b", 100), alone=True)
        assert alone.tokens == Solo(MODEL).answer(request("b", 100))[0]
        answer = router.answer("a")
        await answer.over.wait()
        assert answer.error is not None
        assert answer.error.code == "transfer_timeout"
        prefill.process.kill()
        with pytest.raises(NodeUnavailable):
            await prefilling

        async def are_free() -> bool:
            return not (await router.decode_node.node.Status(pb.StatusRequest())).referenced_blocks

        # They are kept for another attempt first, which does not come.
        await until(are_free)


async def test_the_health_service_tells_life_and_readiness(tmp_path: Path) -> None:
    async with running_process("decode", tmp_path, *SETTINGS) as node, open_channel(node.address["grpc"]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("", "twostep.node.v1.Node"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == serving
        watch = health.Watch(health_pb2.HealthCheckRequest(service="twostep.node.v1.Node"))
        assert (await watch.read()).status == serving
        watch.cancel()


async def refusal(role: str, *settings: str) -> tuple[int | None, str]:
    """Return the exit code and stderr of a node that cannot start."""
    process = await start(role, "model=fake", *settings)
    _, stderr = await asyncio.wait_for(process.communicate(), 200)
    return process.returncode, stderr.decode()


async def test_a_node_that_cannot_start_says_why_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            ("prefill", f"port={port}"): f"cannot listen on 127.0.0.1:{port}",
            ("decode", f"metrics_port={port}"): f"cannot listen on 127.0.0.1:{port}",
            ("prefill", "no_such_key=1"): "unknown key no_such_key",
            ("decode", "timers.lease_s=0"): "timers.lease_s",
            ("decode", "timers.call_s=.inf"): "timers.call_s",
            ("decode", "transport=local"): "nodes of one process only",
            ("prefill", "engine.kv_bytes=100000000000000"): "engine.kv_bytes (95367431 MiB) does not fit",
            ("decode", "landing_bytes=100000000000000"): "landing pool 95367431 MiB leave no room for a KV cache",
            ("decode", "landing_bytes=10000"): "landing_bytes * landing_share = 5000 is less than one block",
            ("decode", "lookahead_tokens=100000000"): "with lookahead_tokens no prompt fits",
            ("decode", "address_file=/nowhere/d.json"): "address_file: /nowhere/d.json cannot be written",
        }
        outcomes = await asyncio.gather(*(refusal(*case) for case in cases))
    for (code, stderr), reason in zip(outcomes, cases.values(), strict=True):
        line = stderr.strip().splitlines()[-1]
        assert (code, reason in line, "Traceback" in stderr) == (2, True, False), stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_node_that_is_told_to_stop_while_it_loads_exits_with_0(signum: signal.Signals, tmp_path: Path) -> None:
    process = await start("decode", "model=fake", f"address_file={tmp_path / 'd.json'}")
    async with asyncio.timeout(60):
        while not (tmp_path / "d.json").exists():  # noqa: ASYNC110 - a process tells nobody but this file
            await asyncio.sleep(0.005)
        process.send_signal(signum)
        _, stderr = await process.communicate()
    assert (process.returncode, b"terminate called" in stderr) == (0, False)
