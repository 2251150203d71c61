"""A client that streams completions over raw sockets, and little else: a program, so that it is not what is measured.

It reads one `Plan` as JSON from stdin and prints a `Result`. `python -m twostep.benchmarks.router_rows.load`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

END = b"0\r\n\r\n"
FIRST = b"data:"
MAX_REPLY_BYTES = 1 << 24
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`bodies` are sent to `path` at `address`, each once, `at_once` at a time."""

    address: str
    path: str
    bodies: list[str]
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """`ttft_s` and `total_s` of the requests that were answered as a whole, in the same order; all others have failed."""

    ttft_s: list[float]
    total_s: list[float]
    num_failed: int


async def run(plan: Plan) -> Result:
    """Send everything. A request that fails costs a new connection."""
    todo, told = iter(plan.bodies), Result([], [], 0)
    results = await asyncio.gather(*(_work(plan, todo) for _ in range(plan.at_once)))
    for result in results:
        told = Result(told.ttft_s + result.ttft_s, told.total_s + result.total_s, told.num_failed + result.num_failed)
    return told


async def _work(plan: Plan, todo: Iterator[str]) -> Result:
    times: list[tuple[float, float]] = []
    num_failed = 0
    connection: _Connection | None = None
    for body in todo:
        try:
            connection = connection or await _Connection.open(plan.address)
            async with asyncio.timeout(LIMIT_S):
                times.append(await connection.ask(plan.path, body.encode()))
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            num_failed += 1
            connection = None
    return Result([first for first, _ in times], [total for _, total in times], num_failed)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address

    @classmethod
    async def open(cls, address: str) -> "_Connection":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=MAX_REPLY_BYTES), address)

    async def ask(self, path: str, body: bytes) -> tuple[float, float]:
        """Return how long the first event took, and all of them. Raises ValueError for a reply that is not a whole stream."""
        head = f"POST {path} HTTP/1.1\r\nhost: {self._address}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        started = time.perf_counter()
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        reply = b""
        while FIRST not in reply:
            reply += await self._more()
            if not b"HTTP/1.1 200".startswith(reply[:12]):
                raise ValueError(reply[:200])
        ttft_s = time.perf_counter() - started
        while not reply.endswith(END):
            reply = reply[-len(END) :] + await self._more()
        return ttft_s, time.perf_counter() - started

    async def _more(self) -> bytes:
        data = await self._reader.read(1 << 16)
        if not data:
            raise ConnectionError("closed in mid-reply")
        return data


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run(Plan(**json.load(sys.stdin)))))))
