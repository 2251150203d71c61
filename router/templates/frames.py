"""How the router and its template process talk: JSON objects, each after its length in four bytes, over a pipe."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO


def pack(value: Mapping[str, Any]) -> bytes:
    """Return the frame. Raises ValueError for integers too long to be written down, and for text that is not Unicode."""
    body = json.dumps(value, ensure_ascii=False).encode()
    return len(body).to_bytes(4, "big") + body


def read_frames(pipe: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield what comes out of the pipe until it ends."""
    while header := pipe.read(4):
        yield json.loads(pipe.read(int.from_bytes(header, "big")))


async def read_frame(pipe: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next object. Raises EOFError when the other side has ended."""
    length = int.from_bytes(await pipe.readexactly(4), "big")
    value: dict[str, Any] = json.loads(await pipe.readexactly(length))
    return value
