"""A router of several processes at one port: what its clients see, also when one of them dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from twostep.proto import node_pb2, serving_pb2
from twostep.proto.rpc import open_channel
from twostep.proto.serving_pb2_grpc import ServingStub
from twostep.tests.router.cluster import TEXT, chat_body, read_metric, text_of, until
from twostep.tests.router.tiny_tokenizer import write_folder
from twostep.tests.router.workers.running import RunningWorkers, ready, running_workers, settings

pytestmark = pytest.mark.processes

NODES = {"prefill": "[127.0.0.1:1]", "decode": "[127.0.0.1:2]"}
NUM_CLIENTS = 12
"""Enough that the kernel hands some of their connections to each of two workers, but once in 2,000 times."""


class Slow:
    """Answers whose tokens come one by one, when the test wants it."""

    def __init__(self, running: RunningWorkers) -> None:
        self._node = running.d
        self._said: dict[tuple[str, int], int] = {}
        running.d.answer = self._answer  # type: ignore[method-assign]

    async def asked(self, count: int) -> None:
        async def are_asked() -> bool:
            return len(self._said) >= count

        await until(are_asked)

    def say(self) -> None:
        """Say the next token of each answer."""
        for (request, attempt), index in self._said.items():
            self._node.emit(request, attempt, TEXT[index : index + 1], first=index)
            self._said[request, attempt] = index + 1

    def say_all(self) -> None:
        for (request, attempt), index in self._said.items():
            self._node.emit(request, attempt, TEXT[index:], first=index)
            self._node.finish(request, attempt, num_tokens=len(TEXT))

    def _answer(self, request: node_pb2.GenerateRequest, attempt: int) -> None:
        self._said[request.id, attempt] = 0


async def lines_of(http: httpx.AsyncClient, heard: list[str]) -> bool:
    """Listen to one streamed answer; return whether it came to its end."""
    try:
        async with http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            async for line in reply.aiter_lines():
                heard.append(line)  # noqa: PERF401 - what has been heard counts when the stream breaks
    except httpx.TransportError:
        return False
    return "data: [DONE]" in heard


def said(heard: Sequence[str]) -> str:
    return text_of([json.loads(line.removeprefix("data: ")) for line in heard if line.startswith("data: {")])


@dataclass(slots=True)
class Stream:
    """A client's answer. `is_whole` says whether it came to its end."""

    heard: list[str] = field(default_factory=list)
    is_whole: bool = False

    async def listen(self, running: RunningWorkers) -> None:
        async with running.client() as http:
            self.is_whole = await lines_of(http, self.heard)


@asynccontextmanager
async def streaming(running: RunningWorkers) -> AsyncIterator[tuple[Slow, list[Stream]]]:
    """Let every client ask; inside the block the answers wait for their first token, and after it all have ended."""
    slow, streams = Slow(running), [Stream() for _ in range(NUM_CLIENTS)]
    async with asyncio.TaskGroup() as tasks:
        for stream in streams:
            tasks.create_task(stream.listen(running))
        await slow.asked(NUM_CLIENTS)
        yield slow, streams


async def test_streams_of_others_go_on_when_a_worker_is_killed_and_new_requests_succeed(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running:
        async with streaming(running) as (slow, streams):
            slow.say()
            before = running.pids
            os.kill(before[1], signal.SIGKILL)
            await running.all_gone([before[1]])
            async with running.client() as http, asyncio.TaskGroup() as tasks:
                quick = tasks.create_task(lines_of(http, []))
                await slow.asked(NUM_CLIENTS + 1)
                await ready(running, 2)
                slow.say_all()
            assert quick.result()
        survived = [said(stream.heard) for stream in streams if stream.is_whole]
        assert 0 < len(survived) < NUM_CLIENTS
        assert set(survived) == {TEXT.decode()}
        after = running.pids
        assert (after[0], after[1] != before[1]) == (before[0], True)
        async with running.client() as http:
            page = (await http.get("/metrics")).text
        assert [read_metric(page, "twostep_router_starts_total", worker=str(number)) for number in (0, 1)] == [1, 2]


async def test_each_page_speaks_for_all_workers(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running:
        for number in range(NUM_CLIENTS):
            async with running.client() as http:
                reply = await http.post("/v1/chat/completions", json=chat_body(), headers={"x-request-id": f"mine-{number}"})
                assert reply.json()["choices"][0]["message"]["content"] == TEXT.decode()
        async with running.client() as http:
            page = (await http.get("/metrics")).text
            served = [read_metric(page, "twostep_router_requests_total", worker=worker) for worker in ("0", "1")]
            assert sum(served) == NUM_CLIENTS
            assert min(served) > 0
            for number in range(NUM_CLIENTS):
                told = await http.get(f"/requests/mine-{number}")
                assert (told.status_code, told.json()["client_id"]) == (200, f"mine-{number}")
            missing = await http.get("/requests/nobody")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


async def test_the_workers_share_the_grpc_port_too(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running:
        for _ in range(NUM_CLIENTS):
            async with open_channel(running.grpc) as channel:
                stub: Any = ServingStub(channel)  # type: ignore[no-untyped-call]
                request = serving_pb2.GenerateRequest(text="hi", stop=serving_pb2.StopRules(max_tokens=100))
                assert "".join([reply.delta.text async for reply in stub.Generate(request, timeout=30)]) == TEXT.decode()
        async with running.client() as http:
            page = (await http.get("/metrics")).text
        assert min(read_metric(page, "twostep_router_requests_total", worker=worker) for worker in ("0", "1")) > 0


async def test_sigterm_lets_every_worker_finish_what_it_has(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running:
        async with streaming(running) as (slow, streams):
            running.process.send_signal(signal.SIGTERM)
            slow.say()
            slow.say_all()
        assert all(stream.is_whole for stream in streams)
        assert {said(stream.heard) for stream in streams} == {TEXT.decode()}
        assert await running.ended() == 0
        assert not any("Traceback" in line for line in running.log)


async def test_a_second_sigterm_ends_all_at_once(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running, running.client() as http:
        slow, pids = Slow(running), running.pids
        waiting = asyncio.create_task(lines_of(http, []))
        await slow.asked(1)
        running.process.send_signal(signal.SIGTERM)

        async def is_stopping() -> bool:
            return len(running.pids) < len(pids)

        await until(is_stopping)
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 128 + signal.SIGTERM
        assert await waiting is False
        await running.all_gone(pids.values())


async def test_workers_do_not_outlive_a_program_that_is_killed(tmp_path: Path) -> None:
    async with running_workers(tmp_path) as running:
        pids = running.pids
        assert len(pids) == 2
        running.process.send_signal(signal.SIGKILL)
        await running.all_gone(pids.values())


async def test_workers_that_cannot_start_any_more_end_the_program(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    async with running_workers(tmp_path, model=write_folder(tmp_path / "model"), chat_template=template) as running:
        template.write_text("{{ no end")
        for pid in running.pids.values():
            os.kill(pid, signal.SIGKILL)
        assert await running.ended() == 2
        assert sum("template.jinja" in line for line in running.log) > 1


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"model": "/nowhere"}, "model: expected a model folder in Hugging Face format or `fake`, found '/nowhere'\n"),
        ({"address_file": "/nowhere/router.json"}, "address_file: /nowhere/router.json cannot be written: No such file"),
        ({"host": "no.such.host.invalid"}, "cannot listen on no.such.host.invalid:0: Name or service not known"),
        ({"workers": 0}, "--set: workers: Input should be greater than 0, found 0\n"),
    ],
)
def test_what_is_wrong_is_said_once_whatever_the_number_of_workers(given: dict[str, object], line: str) -> None:
    assert refused(**given).startswith(f"twostep.router: {line}")


def test_a_folder_too_long_for_the_sockets_of_workers_is_said_once(tmp_path: Path) -> None:
    temporary = tmp_path / ("x" * 100)
    temporary.mkdir()
    assert refused(environment={"TMPDIR": str(temporary)}).startswith("twostep.router: TMPDIR: workers need Unix sockets")


def refused(*, environment: Mapping[str, str] = MappingProxyType({}), **given: object) -> str:
    """Return the one line with which the program refuses to start."""
    command = [sys.executable, "-m", "twostep.router", *settings(**NODES, **given), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr
