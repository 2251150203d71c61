"""Requests that lie, are absurdly large, or come all at once: a typed error in bounded time and memory."""

import asyncio
import json
from pathlib import Path

import pytest

from twostep.tests.router.cluster import chat_body, cluster
from twostep.tests.router.front.http.raw_http import PATH, chat_request, connection, error_of, peak_memory, post
from twostep.tests.router.tiny_tokenizer import write_folder

pytestmark = pytest.mark.processes

HEAD = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n".encode()
BODY = json.dumps(chat_body()).encode()
LIES = {
    "length and chunks": (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef", 400),
    "negative length": (HEAD + b"content-length: -5\r\n\r\n", 400),
    "length that is none": (HEAD + b"content-length: five\r\n\r\n", 400),
    "length beyond 64 bits": (HEAD + b"content-length: 99999999999999999999999\r\n\r\n", 400),
    "chunk size that is none": (HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\nabc\r\n", 400),
    "chunk longer than said": (HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 400),
    "chunk size beyond 64 bits": (HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    "a length longer than the body": (HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 1) + BODY, 408),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, 400),
    "a newer HTTP": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a header without a name": (HEAD + b": nothing\r\n\r\n", 400),
    "a header with a line break": (HEAD + b"a: b\rc\r\n\r\n", 400),
    "a path that is not ASCII": (b"GET /h\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
}
ABSURD = {
    "one endless header": b"GET /health HTTP/1.1\r\nx: " + b"x" * 10_000_000,
    "endless headers": b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 2_000_000,
    "an endless name": b"GET /health HTTP/1.1\r\n" + b"x" * 10_000_000,
    "an endless path": b"GET /" + b"x" * 10_000_000,
    "endless trailers": HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\n" + b"x: y\r\n" * 2_000_000,
    "an endless chunk extension": HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 10_000_000,
}


@pytest.mark.parametrize(("request_bytes", "status"), LIES.values(), ids=LIES.keys())
async def test_a_lie_is_answered_and_the_connection_closed(tmp_path: Path, request_bytes: bytes, status: int) -> None:
    async with cluster(tmp_path, client_send_s=0.5) as running, connection(running) as liar:
        await liar.send(request_bytes)
        found, error = error_of(await liar.rest())
        assert (found, error["type"]) == (status, "invalid_request_error")
        assert running.d.seen.reserves == []


async def test_a_body_longer_than_said_is_cut_and_its_rest_is_no_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, connection(running) as liar:
        await liar.send(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) - 1) + BODY + b"\r\n\r\n")
        assert error_of(await liar.rest())[0] == 400
        assert running.d.seen.reserves == []


@pytest.mark.parametrize("request_bytes", ABSURD.values(), ids=ABSURD.keys())
async def test_absurd_headers_are_refused_before_they_fill_the_memory(tmp_path: Path, request_bytes: bytes) -> None:
    async with cluster(tmp_path) as running, connection(running) as absurd:
        with peak_memory() as growth:
            sending = asyncio.create_task(absurd.send(request_bytes))
            status, error = error_of(await absurd.rest())
        assert (status, error["code"]) == (431, "headers_too_large")
        assert growth[0] < 40 << 20
        await sending


async def test_requests_that_come_in_one_piece_are_answered_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, connection(running) as hasty:
        await hasty.send(b"".join(chat_request(f"x-request-id: r{number}\r\n") for number in range(50)))
        replies = await hasty.replies(50)
        assert [status for status, _, _ in replies] == [200] * 50
        assert [headers["x-request-id"] for _, headers, _ in replies] == [f"r{number}" for number in range(50)]


NESTED = {
    "deep": b"[" * 10_000_000,
    "deep objects": b'{"a":' * 2_000_000,
    "wide": b'{"messages":[' + b"[]," * 3_300_000 + b"[]]}",
    "wide objects": b'{"chat_template_kwargs":{"a":[' + b"{}," * 3_300_000 + b"{}]}}",
    "deep inside a field": b'{"tools":[{"type":"function","function":{"name":"f","parameters":' + b'{"a":' * 2_000_000,
    "one long number": b'{"seed":' + b"9" * 10_000_000 + b"}",
    "one long string": b'{"model":"' + b"x" * 10_000_000 + b'"}',
    "one long key": b'{"' + b"x" * 10_000_000 + b'":1}',
}


@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED.keys())
async def test_ten_megabytes_of_nested_json_are_refused(tmp_path: Path, body: bytes) -> None:
    async with cluster(tmp_path, max_body_bytes=16 << 20, lease_s=10.0) as running:
        with peak_memory() as growth:
            reply = await running.http.post(PATH, content=body)
        assert reply.status_code in (400, 404)
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert len(reply.content) < 2000
        assert growth[0] < 700 << 20
        assert (await running.chat()).status_code == 200


async def test_prompts_of_half_a_million_tokens_at_once_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    prompt = json.dumps(chat_body(model="model", messages=[{"role": "user", "content": "hello wörld " * 40_000}])).encode()
    async with cluster(tmp_path, model=str(folder)) as running:
        with peak_memory() as growth:
            replies = await asyncio.gather(*(running.http.post(PATH, content=prompt) for _ in range(4)))
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(400, "prompt_too_long")}
    assert "tokens, at most 400 fit" in replies[0].json()["error"]["message"]
    assert growth[0] < 300 << 20


async def test_a_request_too_large_in_every_way_says_so_and_leaves_the_connection_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, connection(running) as client:
        await client.send(post(b"x" * (5 << 20)))
        [(status, _, body)] = await client.replies(1)
        assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        await client.send(chat_request())
        assert [status for status, _, _ in await client.replies(1)] == [200]
