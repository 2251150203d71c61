"""A reservation's round trip while the decode node computes, beside a bare echo by a process on the same core."""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.cluster.timings import Step
from twostep.benchmarks.handoff_rows.echo_server import METHOD
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, Side, alternate, percentile
from twostep.core.ids import RequestId, RouterId
from twostep.core.request import Request, SamplingParams, StopRules, Timing
from twostep.proto.rpc import open_channel
from twostep.router.nodes.client import Living, NodeClient
from twostep.router.nodes.events import Reserved
from twostep.router.placement.node_view import NodeDescription

RESERVE = "reserve round trip p99, D busy"
PROMPT_TOKENS, LONG_TOKENS = 256, 4000
CALL_S = 30.0
PAUSE_S = 0.005
BEAT_S = 0.5
"""What keeps the node busy shares the event loop of what is measured: it does no more there than it must."""
AT_ONCE = 2
ECHO_BYTES = 1500
"""About what a reservation of 256 tokens takes on the wire."""


async def measure(effort: Effort) -> Outcomes:
    num_calls = effort.pick(200, 50)
    async with (
        running_cluster("model=smollm2", "engine.own_cores=true") as cluster,
        _echo(sorted(os.sched_getaffinity(0))[-1]) as echo,
    ):
        p, d = [
            NodeClient(node.grpc, RouterId("benchmark")) for node in (cluster.addresses.prefill[0], cluster.addresses.decode[0])
        ]
        prefill = await p.describe(timeout_s=CALL_S)
        busy = asyncio.ensure_future(_keep_busy(d))
        try:
            await _until_computing(cluster)
            reserve = _p99_ms(_reserve(d, prefill), num_calls)
            return {RESERVE: await alternate(reserve, _p99_ms(echo, num_calls), effort.rounds)}
        finally:
            busy.cancel()
            with suppress(asyncio.CancelledError):
                await busy
            await p.close()
            await d.close()


def _p99_ms(call: Side, num_calls: int) -> Side:
    async def side() -> float:
        found = []
        for _ in range(num_calls):
            found.append(1e3 * await call())
            await asyncio.sleep(PAUSE_S)
        return percentile(found, 99)

    return side


def _reserve(decode: NodeClient, prefill: NodeDescription) -> Side:
    prompts, numbers = Prompts(), itertools.count()

    async def call() -> float:
        request = _request(f"reserve-{next(numbers)}", prompts.draw(PROMPT_TOKENS), max_tokens=2)
        started = time.perf_counter()
        async for event in decode.reserve(request, 1, prefill, Timing(remaining_s=CALL_S)):
            if isinstance(event, Reserved):
                break
        took_s = time.perf_counter() - started
        await decode.cancel(request.id, "measured", timeout_s=CALL_S)
        return took_s

    return call


async def _keep_busy(decode: NodeClient) -> None:
    """Let D compute long prompts alone, two at a time, for as long as this runs."""
    prompts, live = Prompts(2), set[RequestId]()
    for number in itertools.count(1):
        while len(live) < AT_ONCE:
            request = _request(f"busy-{number}-{len(live)}", prompts.draw(LONG_TOKENS), max_tokens=1)
            async for _ in decode.reserve(request, 1, None, Timing(remaining_s=CALL_S)):
                live.add(request.id)
        beat = await decode.heartbeat(number, Living(frozenset(live)), lease_s=CALL_S, timeout_s=CALL_S)
        live -= beat.unknown
        await asyncio.sleep(BEAT_S)


async def _until_computing(cluster: RunningCluster) -> None:
    while not any(isinstance(note, Step) for note in cluster.notes("decode-0")):  # noqa: ASYNC110 - notes are a file
        await asyncio.sleep(BEAT_S)


@asynccontextmanager
async def _echo(core: int) -> AsyncIterator[Side]:
    """Run the echo on `core`; yields what calls it once."""
    command = (sys.executable, "-m", "twostep.benchmarks.handoff_rows.echo_server", str(core))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        port = int(await process.stdout.readline())
        async with open_channel(f"127.0.0.1:{port}") as channel:
            method, message = channel.unary_unary(METHOD, None, None), bytes(ECHO_BYTES)

            async def call() -> float:
                started = time.perf_counter()
                await method(message, timeout=CALL_S)
                return time.perf_counter() - started

            yield call
    finally:
        process.kill()
        await process.wait()


def _request(name: str, prompt: list[int], *, max_tokens: int) -> Request:
    rules = StopRules(max_tokens, ignore_eos=True)
    return Request(RequestId(name), tuple(prompt), SamplingParams(seed=1, temperature=0.0), rules)


RESERVE_BUSY = Measurement((RESERVE,), measure)
