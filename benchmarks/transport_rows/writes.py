"""How long one write takes, from posting it to knowing that it is there, by its size and by what carries it.

Both sides poll without rest, in two processes of one machine; `local` copies within one. The peer is NIXL: as it is there,
over shared memory, and over TCP, as UCX alone goes.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, Side, alternate
from twostep.benchmarks.transport_rows.written_to import POOL_BYTES, TARGET
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.memory import HostMemory, MemoryRegion
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.transport import PeerLanding, Transport, WriteState
from twostep.kv_transfer.wires import WIRES

SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "64 MiB": 64 << 20}
SOURCE = NodeRef(NodeId("writes"), Incarnation(1))
PER_ROUND_BYTES = 256 << 20
MOST_PER_ROUND = 200
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A transport, and what UCX may use under it."""

    transport: str
    carriers: str


UCX, NIXL, NIXL_TCP, LOCAL = Wire("ucx", "all"), Wire("nixl", "all"), Wire("nixl", "tcp"), Wire("local", "")
PAIRS = {"ucx, beside nixl": (UCX, NIXL), "ucx, beside nixl over tcp": (UCX, NIXL_TCP), "local, beside nixl": (LOCAL, NIXL)}


@dataclass(frozen=True, slots=True)
class Way:
    """A connected transport and the memory that it reads."""

    transport: Transport
    memory: HostMemory
    written_to: asyncio.StreamWriter | None = None

    async def tell(self) -> None:
        """Let the other side begin to poll, or rest again."""
        if self.written_to:
            self.written_to.write(b"\n")
            await self.written_to.drain()


def _measurement(size: str, num_bytes: int, pair: str, ours: Wire, peer: Wire) -> Measurement:
    row = f"write of {size} over {pair}"

    async def measure(effort: Effort) -> Outcomes:
        async with _way(ours, num_bytes) as one, _way(peer, num_bytes) as other:
            return {row: await alternate(_writes(one, num_bytes), _writes(other, num_bytes), effort.rounds)}

    return Measurement((row,), measure)


WRITES = [_measurement(size, SIZES[size], pair, *wires) for pair, wires in PAIRS.items() for size in SIZES]


@asynccontextmanager
async def _way(wire: Wire, num_bytes: int) -> AsyncIterator[Way]:
    """Connect to a process that is written to, or within this one."""
    memory = HostMemory(POOL_BYTES, "landing")
    memory.bytes[:] = 1
    if wire == LOCAL:
        yield Way(_within(memory, num_bytes), memory)
        return
    environment = {**os.environ, "UCX_TLS": wire.carriers}
    command = (sys.executable, "-m", "twostep.benchmarks.transport_rows.written_to", wire.transport)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
    assert process.stdin
    assert process.stdout
    try:
        told = json.loads(await process.stdout.readline())
        landing = PeerLanding(TARGET, bytes.fromhex(told["metadata"]), MemoryRegion(told["address"], POOL_BYTES), 1)
        os.environ["UCX_TLS"] = wire.carriers
        transport = WIRES[wire.transport](SOURCE)
        transport.register_source(memory.region(), num_bytes)
        transport.connect(landing)
        yield Way(transport, memory, process.stdin)
        transport.close()
    finally:
        process.stdin.close()
        await process.wait()


def _within(memory: HostMemory, num_bytes: int) -> Transport:
    fabric, landing = LocalFabric(), HostMemory(POOL_BYTES, "landing")
    landing.bytes[:] = 0
    target, source = LocalTransport(fabric, TARGET), LocalTransport(fabric, SOURCE)
    target.register_landing(landing.region())
    source.register_source(memory.region(), num_bytes)
    source.connect(PeerLanding(TARGET, target.metadata(), landing.region(), 1))
    return source


def _writes(way: Way, num_bytes: int) -> Side:
    async def side() -> float:
        await way.tell()
        found = await asyncio.to_thread(_some_writes, way.transport, num_bytes)
        await way.tell()
        return 1e6 * median(found)

    return side


def _some_writes(transport: Transport, num_bytes: int) -> list[float]:
    times = min(MOST_PER_ROUND, PER_ROUND_BYTES // num_bytes)
    return [_write_s(transport, num_bytes, turn) for turn in range(times)]


def _write_s(transport: Transport, num_bytes: int, turn: int) -> float:
    units = np.array([turn % (POOL_BYTES // num_bytes)], np.int32)
    started = time.perf_counter()
    write = transport.post(TARGET, units, units, b"")
    while (state := transport.poll(write)) is WriteState.PENDING:
        if time.perf_counter() - started > PATIENCE_S:
            raise OSError(f"a write of {num_bytes} bytes does not end")
    if state is not WriteState.DONE:
        raise OSError("a write has failed")
    return time.perf_counter() - started
