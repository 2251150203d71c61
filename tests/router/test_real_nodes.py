"""The router's program over the real node programs, with the fake model: KV crosses between processes over NIXL."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostep.proto import node_pb2 as pb
from twostep.proto.node_pb2_grpc import NodeStub
from twostep.proto.rpc import open_channel
from twostep.tests.router.cluster import until

pytestmark = pytest.mark.processes

MODEL = "fake:step_s=0.01"
NODE = [
    *("--set", f"model={MODEL}", "--set", "engine.kv_bytes=16777216", "--set", "host=127.0.0.1"),
    *("--set", "landing_bytes=4194304"),
]


@dataclass(frozen=True, slots=True)
class Program:
    process: subprocess.Popen[bytes]
    address_file: Path

    def address(self, key: str) -> str:
        address: str = json.loads(self.address_file.read_text())[key]
        return address


@dataclass(frozen=True, slots=True)
class Town:
    """Real nodes and a real router."""

    prefill: Sequence[Program]
    decode: Sequence[Program]
    http: httpx.AsyncClient

    async def ask(self, number: int, **fields: Any) -> str:
        body = {
            "messages": [{"role": "user", "content": f"question {number} " + "word " * (number * 7 % 60)}],
            "max_tokens": 24,
            "temperature": 0.8,
            "seed": number,
            "ignore_eos": True,
            **fields,
        }
        reply = await self.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text


def start(tmp_path: Path, package: str, name: str, *arguments: str) -> Program:
    address_file = tmp_path / f"{name}.json"
    command = [sys.executable, "-m", f"twostep.{package}", "--set", f"address_file={address_file}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return Program(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL), address_file)


async def listening(program: Program) -> None:
    async def has_address() -> bool:
        assert program.process.poll() is None, program.process.args
        return program.address_file.exists()

    await until(has_address, timeout_s=60)


@asynccontextmanager
async def town(tmp_path: Path, *, num_prefill: int, num_decode: int) -> AsyncIterator[Town]:
    prefill = [start(tmp_path, "prefill_node", f"p{number}", *NODE[:-2]) for number in range(num_prefill)]
    decode = [start(tmp_path, "decode_node", f"d{number}", *NODE) for number in range(num_decode)]
    programs = [*prefill, *decode]
    try:
        for program in programs:
            await listening(program)
        told = {"prefill": prefill, "decode": decode}
        nodes = [f"{role}=[{','.join(node.address('grpc') for node in nodes)}]" for role, nodes in told.items()]
        settings = [*nodes, f"model={MODEL}", "port=0", "lease_s=3", "node_lost_s=1"]
        router = start(tmp_path, "router", "router", *(word for setting in settings for word in ("--set", setting)))
        programs.append(router)
        await listening(router)
        async with httpx.AsyncClient(base_url=f"http://{router.address('http')}", timeout=60) as http:
            await until(lambda: has_pairs(http, num_prefill * num_decode), timeout_s=60)
            yield Town(prefill, decode, http)
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()


async def has_pairs(http: httpx.AsyncClient, num_pairs: int) -> bool:
    return bool((await http.get("/ready")).json()["proven_pairs"] == num_pairs)


async def nothing_is_referenced(program: Program) -> bool:
    channel = open_channel(program.address("grpc"))
    try:
        ledger = await NodeStub(channel).Ledger(pb.LedgerRequest())  # type: ignore[no-untyped-call]
    finally:
        await channel.close()
    assert ledger.orphaned_blocks == 0
    assert ledger.free_blocks + ledger.cached_blocks + ledger.referenced_blocks == ledger.total_blocks
    return bool(ledger.referenced_blocks == 0)


async def test_answers_do_not_depend_on_company_prefix_hits_or_the_death_of_nodes(tmp_path: Path) -> None:
    async with town(tmp_path, num_prefill=2, num_decode=2) as running:
        alone = [await running.ask(number) for number in range(8)]
        together = await asyncio.gather(*(running.ask(number) for number in range(8)))
        assert together == alone

        for victim in (running.prefill[0], running.decode[0]):
            asking = [asyncio.create_task(running.ask(number, cache_salt="fresh")) for number in range(8)]
            await asyncio.sleep(0.15)
            os.kill(victim.process.pid, signal.SIGKILL)
            assert await asyncio.gather(*asking) == alone

        for node in (running.prefill[1], running.decode[1]):
            await until(lambda node=node: nothing_is_referenced(node))  # type: ignore[misc]


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    async with town(tmp_path, num_prefill=1, num_decode=1) as running:
        for wait_s in (0.005, 0.02, 0.05, 0.2):
            asking = [asyncio.create_task(running.ask(number, max_tokens=400, stream=number % 2 == 0)) for number in range(12)]
            await asyncio.sleep(wait_s)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        for node in (*running.prefill, *running.decode):
            await until(lambda node=node: nothing_is_referenced(node))  # type: ignore[misc]


async def test_a_second_identical_prompt_moves_fewer_bytes_and_is_answered_alike(tmp_path: Path) -> None:
    async with town(tmp_path, num_prefill=1, num_decode=1) as running:
        body = {"messages": [{"role": "user", "content": "the same " * 30}], "max_tokens": 8, "temperature": 0, "bill": True}
        first, second = [(await running.http.post("/v1/chat/completions", json=body)).json() for _ in range(2)]
        assert second["choices"] == first["choices"]
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 256
        assert 0 < second["bill"]["bytes_moved"] < first["bill"]["bytes_moved"]
        assert second["bill"]["prefill_computed_tokens"] == first["usage"]["prompt_tokens"] - 256
        assert first["bill"]["decode_computed_tokens"] == second["bill"]["decode_computed_tokens"] == 0


async def test_a_stop_string_ends_the_work_on_the_decode_node(tmp_path: Path) -> None:
    async with town(tmp_path, num_prefill=1, num_decode=1) as running:
        whole = await running.ask(1, max_tokens=100)
        assert await running.ask(1, max_tokens=100, stop=[whole[10:16]]) == whole[: whole.index(whole[10:16])]
        await until(lambda: nothing_is_referenced(running.decode[0]))
