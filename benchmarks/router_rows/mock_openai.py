"""A server that speaks OpenAI's streams, computes nothing and keeps the time that our mock nodes keep: what peers route to.

It prints its address. `python -m twostep.benchmarks.router_rows.mock_openai`.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator

from twostep.benchmarks.router_rows.shape import MAX_TOKENS, TPOT_S, TTFT_S, WORD

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAGES = {
    "/v1/models": {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "mock"}]},
    "/get_model_info": {"model_path": "mock", "is_generation": True},
    "/model_info": {"model_path": "mock", "is_generation": True},
    "/get_server_info": {"model_path": "mock", "served_model_name": "mock", "max_total_num_tokens": MAX_TOKENS},
    "/server_info": {"model_path": "mock", "served_model_name": "mock", "max_total_num_tokens": MAX_TOKENS},
}


class Ticker:
    """Wakes all streams at the same moment, as a step does."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TPOT_S - loop.time() % TPOT_S)
            woken, self._next = self._next, asyncio.Event()
            woken.set()

    async def tick(self) -> None:
        await self._next.wait()


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ticker: Ticker) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path, body = await _read(head, reader)
            if path in ("/v1/chat/completions", "/v1/completions"):
                await _stream(json.loads(body), writer, ticker)
            else:
                page = json.dumps(PAGES.get(path, {"status": "ok"})).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(page) + page
                )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _read(head: bytes, reader: asyncio.StreamReader) -> tuple[str, bytes]:
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join([chunk async for chunk in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return lines[0].split(" ")[1].partition("?")[0], body


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).strip() or b"0", 16):
        yield (await reader.readexactly(size + 2))[:size]
    await reader.readline()


async def _stream(asked: dict[str, object], writer: asyncio.StreamWriter, ticker: Ticker) -> None:
    most = int(str(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16))
    common = {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
    await asyncio.sleep(TTFT_S)
    writer.write(HEAD)
    for index in range(most):
        if index:
            await ticker.tick()
        reason = "length" if index + 1 == most else None
        choice = {"index": 0, "delta": {"content": WORD}, "text": WORD, "finish_reason": reason}
        writer.write(_chunk(b"data: " + json.dumps({**common, "choices": [choice]}).encode() + b"\n\n"))
    writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main() -> None:
    ticker = Ticker()
    server = await asyncio.start_server(lambda reader, writer: serve_connection(reader, writer, ticker), "127.0.0.1", 0)
    print(json.dumps({"http": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    ticking = asyncio.create_task(ticker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ticking.cancel)
    await asyncio.wait({ticking})


if __name__ == "__main__":
    asyncio.run(main())
