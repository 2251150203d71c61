"""How fast NIXL writes between two processes of this machine: the wire that a handover cannot beat.

Run as a program it is the side that is written to: it tells its landing pool on stdout and polls until stdin ends.
"""

import asyncio
import json
import select
import sys
import time

import numpy as np

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.memory import HostMemory, MemoryRegion
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.transport import PeerLanding, WriteState

POOL_BYTES = 64 << 20
WRITE_BYTES = 8 << 20
TRIES = 15
TARGET, SOURCE = (NodeRef(NodeId(f"peak-{side}"), Incarnation(1)) for side in ("target", "source"))


async def transport_peak() -> dict[str, float]:
    """Return the best rate of a contiguous write."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        landing = json.loads(await process.stdout.readline())
        return {"NIXL write GB/s": await asyncio.to_thread(_best_rate, landing) / 1e9}
    finally:
        process.stdin.close()
        await process.wait()


def _best_rate(landing: dict[str, str | int]) -> float:
    memory = HostMemory(POOL_BYTES, "POOL_BYTES")
    memory.bytes[:] = 1
    transport = NixlTransport(SOURCE)
    transport.register_source(memory.region(), WRITE_BYTES)
    region = MemoryRegion(int(landing["address"]), POOL_BYTES)
    transport.connect(PeerLanding(TARGET, bytes.fromhex(str(landing["metadata"])), region, 1))
    try:
        return WRITE_BYTES / min(_write_s(transport, unit % (POOL_BYTES // WRITE_BYTES)) for unit in range(TRIES))
    finally:
        transport.close()


def _write_s(transport: NixlTransport, unit: int) -> float:
    units = np.array([unit], np.int32)
    started = time.perf_counter()
    write = transport.post(TARGET, units, units, b"")
    while (state := transport.poll(write)) is WriteState.PENDING:
        pass
    if state is not WriteState.DONE:
        raise OSError("a write has failed")
    return time.perf_counter() - started


def _be_written_to() -> None:
    memory = HostMemory(POOL_BYTES, "POOL_BYTES")
    memory.bytes[:] = 0
    transport = NixlTransport(TARGET)
    transport.register_landing(memory.region())
    print(json.dumps({"address": memory.region().address, "metadata": transport.metadata().hex()}), flush=True)
    while not select.select([sys.stdin], [], [], 100e-6)[0]:
        transport.notifications()
    transport.close()


if __name__ == "__main__":
    _be_written_to()
