"""How the router and its template process talk: JSON objects, each after its length in four bytes, over a pipe."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from pydantic_core import from_json, to_json


def pack(value: Mapping[str, Any]) -> bytes:
    """Return the frame. Raises ValueError for text that is not Unicode."""
    body = to_json(value, inf_nan_mode="constants")
    return len(body).to_bytes(4, "big") + body


def read_frames(pipe: BinaryIO) -> Iterator[bytes]:
    """Yield what comes out of the pipe until it ends, each to be given to `unpack`."""
    while header := pipe.read(4):
        yield pipe.read(int.from_bytes(header, "big"))


async def read_frame(pipe: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next object. Raises EOFError when the other side has ended."""
    length = int.from_bytes(await pipe.readexactly(4), "big")
    return unpack(await pipe.readexactly(length))


def unpack(body: bytes) -> dict[str, Any]:
    """Raises ValueError for integers too long to be read."""
    value: dict[str, Any] = from_json(body, allow_inf_nan=True, cache_strings="none")
    return value
