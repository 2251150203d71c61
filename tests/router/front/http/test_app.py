"""The router's HTTP surface: bad requests by the wire, small pages, clients that misbehave."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from twostep.tests.router.cluster import Cluster, chat_body, cluster, until

pytestmark = pytest.mark.processes

PATH = "/v1/chat/completions"
BAD_BODIES: list[tuple[bytes, int, str, str | None]] = [
    (b"", 400, "the body is not valid JSON", None),
    (b"{", 400, "the body is not valid JSON", None),
    (b"[1]", 400, "the body must be a JSON object, found list", None),
    (b"\xff\xfe", 400, "the body is not UTF-8", None),
    (b"[" * 50_000, 400, "recursion limit exceeded", None),
    (json.dumps(chat_body(max_tokens=0)).encode(), 400, "max_tokens: Input should be greater than or equal to 1", "max_tokens"),
    (json.dumps(chat_body(max_tokens=-1)).encode(), 400, "max_tokens", "max_tokens"),
    (json.dumps(chat_body(temperature=-1)).encode(), 400, "temperature", "temperature"),
    (json.dumps(chat_body(temperature=float("nan"))).encode(), 400, "temperature", "temperature"),
    (json.dumps(chat_body(messages=[])).encode(), 400, "messages", "messages"),
    (json.dumps(chat_body(messages="hi")).encode(), 400, "messages", "messages"),
    (json.dumps(chat_body(model="gpt-9")).encode(), 404, "model 'gpt-9' does not exist here; served: 'fake'", "model"),
    (json.dumps(chat_body(n=2)).encode(), 400, "n is not supported", "n"),
    (json.dumps(chat_body(max_tokens=1000)).encode(), 400, "max_tokens can be 493 at most, found 1000", "max_tokens"),
    (
        json.dumps(chat_body(messages=[{"role": "user", "content": "x" * 500}])).encode(),
        400,
        "the prompt has 517 tokens, at most 400 fit",
        "messages",
    ),
    (json.dumps(chat_body(stop_token_ids=[1000])).encode(), 400, "token ids must be below 1000, found 1000", "stop_token_ids"),
]


@asynccontextmanager
async def raw_connection(running: Cluster) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_every_bad_body_is_answered_as_openai_does(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for body, status, message, param in BAD_BODIES:
            for stream in (False, True):
                given = body.replace(b'"model"', b'"stream": true, "model"', 1) if stream else body
                reply = await running.http.post(PATH, content=given)
                error = reply.json()["error"]
                assert (reply.status_code, error["param"]) == (status, param), error
                assert message in error["message"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["type"] == "invalid_request_error"
                assert "x-request-id" in reply.headers
        assert running.d.seen.reserves == []


async def test_a_content_type_that_is_wrong_or_missing_is_tolerated(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        body = json.dumps(chat_body()).encode()
        assert (await running.http.post(PATH, content=body)).status_code == 200
        assert (await running.http.post(PATH, content=body, headers={"content-type": "text/plain"})).status_code == 200


async def test_a_chat_template_that_raises_is_the_requests_fault(tmp_path: Path) -> None:
    from twostep.tests.router.tiny_tokenizer import write_folder

    settings = {"chat_template": "{{ raise_exception('no system role') }}"}
    folder = write_folder(tmp_path / "model", settings=settings)
    async with cluster(tmp_path, model=str(folder)) as running:
        reply = await running.chat(model="model")
        assert reply.status_code == 400
        assert "no system role" in reply.json()["error"]["message"]
        assert reply.json()["error"]["param"] == "messages"


async def test_a_body_over_the_limit_is_refused_without_being_read(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_body_bytes=1000) as running, raw_connection(running) as (reader, writer):
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000000\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_body_bytes=1000) as running:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        reply = await running.http.post(PATH, content=chunks())
        assert reply.status_code == 413
        assert reply.json()["error"]["message"] == "the body may have at most 1000 bytes, found more"


async def test_a_client_that_leaves_while_sending_does_no_harm(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        async with raw_connection(running) as (_, writer):
            writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
            await writer.drain()

        async def is_counted() -> bool:
            return await running.metric("twostep_router_requests_total", outcome="client_gone") == 1

        await until(is_counted)


async def test_unknown_paths_and_wrong_methods_are_answered_in_openais_shape(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        missing = await running.http.get("/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert missing.json()["error"]["message"] == "not found: GET /v1/nothing"
        wrong = await running.http.get(PATH)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert (await running.http.post("/v1/models")).status_code == 405
        assert (await running.http.get("/v1/models/gpt-9")).json()["error"]["code"] == "model_not_found"


async def test_the_small_pages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        assert (await running.http.get("/health")).json() == {"status": "ok"}
        version = (await running.http.get("/version")).json()
        assert version["version"]
        assert [(node["role"], node["kernels"]) for node in version["nodes"]] == [("prefill", "fake"), ("decode", "fake")]
        models = (await running.http.get("/v1/models")).json()
        assert models["object"] == "list"
        assert [(card["id"], card["object"]) for card in models["data"]] == [("fake", "model")]
        ready = (await running.http.get("/ready")).json()
        assert (ready["ready"], ready["proven_pairs"]) == (True, 1)
        assert ready["pairs"] == [{"prefill": "p0@1", "decode": "d0@1", "path": "fake", "bytes_per_s": 0.0}]
        assert (await running.http.get("/metrics")).headers["content-type"].startswith("text/plain")


async def test_without_a_decode_node_the_client_is_told_to_come_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.d.stop()

        async def is_unready() -> bool:
            return (await running.http.get("/ready")).status_code == 503

        await until(is_unready)
        reply = await running.chat()
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "no_ready_node"
        assert (await running.http.get("/health")).status_code == 200


async def test_a_pair_that_is_not_proven_is_not_ready(tmp_path: Path) -> None:
    async with cluster(tmp_path, is_ready=False) as running:
        running.p.proven.clear()
        await running.p.beaten.wait(3)

        async def is_unproven() -> bool:
            report = (await running.http.get("/ready")).json()
            return all(node["ready"] for node in report["nodes"]) and not report["ready"]

        await until(is_unproven)
        assert (await running.chat()).status_code == 503


async def test_a_request_over_the_bound_is_refused_before_any_work(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_in_flight=1) as running:
        running.p.on_prefill = lambda _: asyncio.get_running_loop().create_future()
        first = asyncio.create_task(running.chat())
        await running.p.prefilling.wait()
        reply = await running.chat()
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        assert reply.json()["error"]["type"] == "rate_limit_error"
        assert len(running.d.seen.reserves) == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_small_writes_are_never_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[Any] = []
    accept = socket.socket.accept

    def noting_accept(listener: socket.socket) -> Any:
        connection, address = accept(listener)
        asyncio.get_running_loop().call_later(
            0.05, lambda: delays.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        )
        return connection, address

    async with cluster(tmp_path) as running:
        monkeypatch.setattr(socket.socket, "accept", noting_accept)
        async with raw_connection(running):

            async def is_noted() -> bool:
                return bool(delays)

            await until(is_noted)
        assert all(delays)


async def test_a_client_that_reads_nothing_is_given_up_and_its_nodes_are_free(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_buffered_tokens=50, client_stall_s=0.3) as running:
        words = [700] * 400
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        async with raw_connection(running) as (_, writer):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            body = json.dumps(chat_body(stream=True, max_tokens=480)).encode()
            writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            await running.p.prefilling.wait()
            request = running.d.seen.reserves[0].request.id
            running.d.emit(request, 1, words)
            await running.d.cancel_seen.wait()


async def test_requests_in_flight_end_well_when_the_router_stops(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        asking = asyncio.create_task(running.chat())
        await running.p.prefilling.wait()
        running.stop.set()
        await running.d.beaten.wait(len(running.d.seen.beats) + 2)
        request = running.d.seen.reserves[0].request.id
        running.d.emit(request, 1, b"done")
        running.d.finish(request, 1)
        assert (await asking).json()["choices"][0]["message"]["content"] == "done"
