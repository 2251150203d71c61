"""HTTP by hand, for clients that do what no library would do."""

import asyncio
import gc
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostep.tests.router.cluster import Cluster, chat_body

PATH = "/v1/chat/completions"
END_S = 60.0


@dataclass(slots=True)
class RawConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send what the router takes; it may have stopped listening."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return

    async def dribble(self, data: bytes, *, pause_s: float) -> bytes:
        """Send one byte after the other until the router answers or hangs up; return what it says first."""
        for index in range(len(data)):
            await self.send(data[index : index + 1])
            try:
                async with asyncio.timeout(pause_s):
                    return await self.reader.read(1)
            except TimeoutError:
                continue
            except ConnectionError:
                return b""
        raise AssertionError("the router took it all")

    async def rest(self) -> bytes:
        """Return what the router says until it hangs up."""
        received = b""
        async with asyncio.timeout(END_S):
            try:
                while data := await self.reader.read(1 << 16):
                    received += data
            except ConnectionError:
                return received
        return received

    async def replies(self, count: int) -> list[tuple[int, dict[str, str], bytes]]:
        """Return status, headers and body of the next replies, which have a length."""
        async with asyncio.timeout(END_S):
            return [await self._reply() for _ in range(count)]

    def reset(self) -> None:
        """Break the connection: the router sees a reset, not an end."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _reply(self) -> tuple[int, dict[str, str], bytes]:
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(status.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


@asynccontextmanager
async def connection(running: Cluster, *, receive_buffer: int | None = None) -> AsyncIterator[RawConnection]:
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.setblocking(False)
    host, port = running.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=raw)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def chat_request(headers: str = "", **fields: Any) -> bytes:
    """Return a whole POST, its length included."""
    return post(json.dumps(chat_body(**fields)).encode(), headers)


def post(body: bytes, headers: str = "") -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def error_of(reply: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the error of a raw reply, which must be one in OpenAI's shape."""
    head, _, body = reply.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Yield a list that is given, at the end, by how many bytes this process has grown at its highest."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    growth: list[int] = []
    yield growth
    growth.append(_status("VmHWM") - before)


def memory() -> int:
    """Return how many bytes of memory this process holds."""
    gc.collect()
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
