"""A router over scripted nodes, on loopback: what the tests of its HTTP surface start from."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from twostep.proto import node_pb2 as pb
from twostep.router.config import RouterConfig
from twostep.router.serve import serve
from twostep.tests.router.fake_nodes import FakeDecode, FakeNode, FakePrefill

TEXT = b"Hello, world"


@dataclass(slots=True)
class Cluster:
    """A running router. `http` speaks to it; `grpc` is the address of its other door."""

    prefill: list[FakePrefill]
    decode: list[FakeDecode]
    http: httpx.AsyncClient
    url: str
    grpc: str
    stop: asyncio.Event

    @property
    def p(self) -> FakePrefill:
        return self.prefill[0]

    @property
    def d(self) -> FakeDecode:
        return self.decode[0]

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=chat_body(**fields))

    async def metric(self, name: str, **labels: str) -> float:
        return read_metric((await self.http.get("/metrics")).text, name, **labels)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, **fields}


def say(decode: FakeDecode, tokens: Sequence[int], finish: str = "length") -> None:
    """Let the node answer every request with `tokens`, one message each, from where the request is."""

    def answer(request: pb.GenerateRequest, attempt: int) -> None:
        for index in range(len(request.output_tokens), len(tokens)):
            decode.emit(request.id, attempt, tokens[index : index + 1], first=index)
        decode.finish(request.id, attempt, finish, num_tokens=len(tokens))

    decode.answer = answer  # type: ignore[method-assign]


@asynccontextmanager
async def cluster(
    tmp_path: Path, *, num_prefill: int = 1, num_decode: int = 1, is_ready: bool = True, by_file: bool = False, **settings: Any
) -> AsyncIterator[Cluster]:
    """Start nodes and a router, and wait until the router is ready. `by_file`: its nodes are what `name_nodes` says."""
    decode = [FakeDecode(f"d{number}") for number in range(num_decode)]
    prefill = [FakePrefill(f"p{number}", decode) for number in range(num_prefill)]
    for node in (*prefill, *decode):
        await node.start()
    for node in decode:
        say(node, TEXT)
    addresses = {
        "prefill": tuple(node.address for node in prefill),
        "decode": tuple(node.address for node in decode),
    }
    name_nodes(tmp_path, [*prefill, *decode])
    by_watch = {"discovery": {"file": {"path": tmp_path / "nodes.json", "poll_s": 0.01}}}
    config = RouterConfig(
        port=0,
        address_file=tmp_path / "router.json",
        **(by_watch if by_file else addresses),
        **{"lease_s": 1.5, "node_lost_s": 5.0, "drain_s": 5.0, "recovery_wait_s": 0.05, **settings},
    )
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(config, stop))
    try:
        told = await _listening(tmp_path / "router.json", serving)
        url = f"http://{told['http']}"
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            if is_ready:
                await _until_ready(http)
            yield Cluster(prefill, decode, http, url, told["grpc"], stop)
    finally:
        stop.set()
        await serving
        for node in (*prefill, *decode):
            await node.stop()


def name_nodes(folder: Path, nodes: Sequence[FakeNode], *, leaving: Collection[FakeNode] = ()) -> None:
    """Tell a router that watches this folder which nodes there are."""
    members = [(node, {"address": node.address, "id": node.ref.id, "leaving": node in leaving}) for node in nodes]
    listed = {role: [member for node, member in members if node.role == role] for role in ("prefill", "decode")}
    (folder / "nodes.partial").write_text(json.dumps(listed))
    (folder / "nodes.partial").replace(folder / "nodes.json")


def events(body: str) -> list[Any]:
    """Return the JSON of every server-sent event; the closing mark as it is. Comments are passed over."""
    lines = body.split("\n\n")
    assert lines.pop() == ""
    data = [line.removeprefix("data: ") for line in lines if not line.startswith(":")]
    return [text if text == "[DONE]" else json.loads(text) for text in data]


def text_of(chunks: Sequence[Any]) -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def read_metric(page: str, name: str, **labels: str) -> float:
    """Return one sample of a Prometheus page, 0 when it is not there."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    for line in page.splitlines():
        head, _, value = line.rpartition(" ")
        sample, _, given = head.partition("{")
        if sample == name and wanted <= set(given.rstrip("}").split(",")):
            return float(value)
    return 0.0


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 60) -> None:
    """Wait until `condition` holds: for what another program or connection does in its own time."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def _listening(path: Path, serving: "asyncio.Task[None]") -> dict[str, str]:
    async def is_there() -> bool:
        if serving.done():
            serving.result()
        return await asyncio.to_thread(path.exists)

    await until(is_there)
    told: dict[str, str] = json.loads(await asyncio.to_thread(path.read_text))
    return told


async def _until_ready(http: httpx.AsyncClient) -> None:
    async def is_ready() -> bool:
        report = await http.get("/ready")
        # Also the slowest node: which ones serve the first request must not depend on chance.
        return report.status_code == 200 and all(node["ready"] for node in report.json()["nodes"])

    await until(is_ready)
