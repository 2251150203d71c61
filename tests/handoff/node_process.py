"""A node as a real process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import open_channel
from twostep.tests.handoff.mini_router import Stubs

START_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """`address` is what the node wrote into its address file."""

    process: asyncio.subprocess.Process
    address: dict[str, Any]
    stubs: Stubs
    description: pb.NodeDescription


async def start(role: str, *settings: str) -> asyncio.subprocess.Process:
    arguments = [part for setting in settings for part in ("--set", setting)]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"twostep.{role}_node", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


@asynccontextmanager
async def running_process(role: str, folder: Path, *settings: str) -> AsyncIterator[NodeProcess]:
    """Start a node with the fake model, wait until it is ready, and make sure that it is gone at the end."""
    file = folder / f"{role}.json"
    process = await start(role, "model=fake", "engine.kv_bytes=4000000", f"address_file={file}", *settings)
    try:
        async with asyncio.timeout(START_S):
            address = await _read_when_written(file, process)
            async with open_channel(address["grpc"]) as channel:
                stubs = Stubs(channel)
                yield NodeProcess(process, address, stubs, await _describe_when_ready(stubs))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _read_when_written(file: Path, process: asyncio.subprocess.Process) -> dict[str, Any]:
    while (address := await asyncio.to_thread(_read, file)) is None:
        assert process.returncode is None, "the node has ended"
        await asyncio.sleep(0.02)
    return address


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text()) if file.exists() else None


async def _describe_when_ready(stubs: Stubs) -> pb.NodeDescription:
    while True:
        description: pb.NodeDescription = await stubs.node.Describe(pb.DescribeRequest())
        if description.ready:
            return description
        await asyncio.sleep(0.02)
