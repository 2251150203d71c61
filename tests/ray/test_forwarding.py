"""How a request passes through Serve's replica to a router, and the reply back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from twostep.deploy.ray.forwarding import Forwarding

END = b"0\r\n\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def upstream(answer: Answer) -> AsyncIterator[str]:
    """Run a server that answers each connection in that way."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def scope(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "root_path": "", **more}


class Client:
    """Gives a body in two pieces, and keeps what it is sent."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces or [b""])
        self.sent: list[dict[str, Any]] = []
        self.has_body = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.has_body.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_a_request_arrives_as_it_was_and_its_reply_comes_back_piece_by_piece() -> None:
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        heard.append(await reader.readexactly(4))
        writer.write(b"HTTP/1.1 201 Created\r\nx-request-id: one\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        await told.wait()
        writer.write(b"2\r\nde\r\n" + END)
        writer.close()

    told = asyncio.Event()
    async with upstream(answer) as address:
        forwarding, client = Forwarding(address, reply_s=5), Client(b"ab", b"cd")
        headers = [(b"host", b"models"), (b"content-length", b"4"), (b"x-tenant", b"a"), (b"connection", b"close")]
        asked = scope("POST", "/app/v1/x%y", root_path="/app", query_string=b"q=1&r=a%20b", headers=headers)
        answering = asyncio.create_task(forwarding(asked, client.receive, client.send))
        await client.has_body.wait()
        assert client.body == b"abc"
        told.set()
        await answering
        await forwarding.close()
    lines = heard[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/x%25y?q=1&r=a%20b HTTP/1.1"
    assert {b"host: models", b"content-length: 4", b"x-tenant: a"} <= {line.lower() for line in lines}
    assert b"connection: close" not in heard[0].lower()
    assert heard[1] == b"abcd"
    assert client.sent == [
        {"type": "http.response.start", "status": 201, "headers": [(b"x-request-id", b"one")]},
        {"type": "http.response.body", "body": b"abc", "more_body": True},
        {"type": "http.response.body", "body": b"de", "more_body": True},
        {"type": "http.response.body", "body": b""},
    ]


async def test_a_client_that_leaves_closes_the_connection_to_the_router() -> None:
    has_begun, has_left = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        has_begun.set()
        assert await reader.read() == b""
        has_left.set()
        writer.close()

    async with upstream(answer) as address:
        forwarding, client = Forwarding(address, reply_s=5), Client()
        answering = asyncio.create_task(forwarding(scope("GET", "/"), client.receive, client.send))
        await has_begun.wait()
        answering.cancel()
        await asyncio.wait_for(has_left.wait(), 5)
        await forwarding.close()


async def test_a_router_that_is_not_there_is_a_typed_error() -> None:
    async with upstream(lambda *_: None) as address:
        pass
    forwarding, client = Forwarding(address, reply_s=5), Client()
    await forwarding(scope("GET", "/health"), client.receive, client.send)
    await forwarding.close()
    assert client.sent[0]["status"] == 503
    error = json.loads(client.body)["error"]
    assert (error["code"], error["message"]) == (
        "node_unavailable",
        "the router does not answer: All connection attempts failed",
    )


async def test_a_client_that_leaves_before_it_has_sent_all_is_not_passed_on() -> None:
    client, forwarding = Client(b"half"), Forwarding("127.0.0.1:1", reply_s=5)
    said = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return said.pop(0)

    await forwarding(scope("POST", "/v1/completions"), receive, client.send)
    assert (said, client.sent) == ([], [])


async def test_a_path_that_no_client_of_ours_takes_is_a_typed_error() -> None:
    forwarding, client = Forwarding("127.0.0.1:1", reply_s=5), Client()
    await forwarding(scope("GET", "/" + "x" * 70_000), client.receive, client.send)
    assert (client.sent[0]["status"], json.loads(client.body)["error"]["code"]) == (400, "invalid_request")


async def test_a_websocket_is_turned_away() -> None:
    forwarding, client = Forwarding("127.0.0.1:1", reply_s=5), Client()
    await forwarding({"type": "websocket", "path": "/", "headers": []}, client.receive, client.send)
    assert client.sent == [{"type": "websocket.close"}]


async def test_it_takes_part_in_its_servers_life() -> None:
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    client, forwarding = Client(), Forwarding("127.0.0.1:1", reply_s=5)

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    await forwarding({"type": "lifespan"}, receive, client.send)
    assert client.sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]
