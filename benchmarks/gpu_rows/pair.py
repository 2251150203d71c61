"""KV from the memory of one process to that of another over NIXL: written, copied into blocks there, and its digests compared.

Run as a program it is the process that is written to: a landing pool and a KV cache on the same kind of device.
"""

import asyncio
import json
import select
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from typing import Any

import numpy as np
import torch

from twostep.benchmarks.gpu_rows.stage import BLOCK_TOKENS, LLAMA, Stage
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Unmeasured
from twostep.core.ids import BlockId, Incarnation, NodeId, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.engine.torch_kv_cache import TorchKVCache
from twostep.kv_transfer.nixl_transport import PACKAGES, NixlTransport
from twostep.kv_transfer.transport import PeerLanding, WriteState

HANDED_OVER = "KV of an 8k prompt of Llama-3.1-8B from P to D over NIXL, copied in and verified"
MAX_WRITE_BYTES = 32 << 20
P, D = (NodeRef(NodeId(name), Incarnation(1)) for name in "pd")


@dataclass(frozen=True, slots=True)
class Shape:
    """What is handed over: all KV of `num_tokens` tokens. `place` is where both caches lie."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_tokens: int
    place: str

    @property
    def layout(self) -> KVLayout:
        return KVLayout(self.num_layers, self.num_kv_heads, self.head_dim, BLOCK_TOKENS, "bfloat16")

    @property
    def num_blocks(self) -> int:
        return ceil(self.num_tokens / BLOCK_TOKENS)

    @property
    def table(self) -> tuple[BlockId, ...]:
        return tuple(map(BlockId, range(self.num_blocks)))

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.layout.block_bytes

    def cache(self) -> TorchKVCache:
        return TorchKVCache(self.layout, self.num_blocks, torch.device(self.place))


def handed_over(stage: Stage) -> Measurement:
    config = stage.models[LLAMA]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = config["num_key_value_heads"]
    shape = Shape(config["num_hidden_layers"], heads, head_dim, stage.sizes.prompts[-1], str(stage.device.place))

    async def measure(effort: Effort) -> Outcomes:
        if not any(map(find_spec, PACKAGES)):
            return {HANDED_OVER: Unmeasured("NIXL is not installed")}
        told = json.dumps([getattr(shape, name) for name in shape.__slots__])
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __spec__.name, told, stdin=PIPE, stdout=PIPE)
        try:
            source = Source(shape, process)
            await source.connect()
            rates = [await source.hand_over() for _ in range(1 + effort.rounds)][1:]
        finally:
            assert process.stdin
            process.stdin.close()
            await process.wait()
        return {HANDED_OVER: stage.timed(rates)}

    return Measurement((HANDED_OVER,), measure)


class Source:
    """P: a cache full of noise, written into D's landing pool."""

    def __init__(self, shape: Shape, destination: Process) -> None:
        self._shape = shape
        self._destination = destination
        self._cache = shape.cache()
        self._cache.words.random_()
        self._unit_bytes = shape.layout.layer_block_bytes
        self._transport = NixlTransport(P)
        self._transport.register_source(self._cache.region(), self._unit_bytes)

    async def connect(self) -> None:
        told = await self._hear()
        region = MemoryRegion(told["address"], self._shape.num_bytes, told["kind"], told["device"])
        self._transport.connect(PeerLanding(D, bytes.fromhex(told["metadata"]), region, 1))

    async def hand_over(self) -> float:
        """Return the rate in GB/s, from the first write to the last digest. Raises OSError when a digest differs."""
        tokens, layers = TokenRange(0, self._shape.num_tokens), range(self._shape.num_layers)
        right = self._cache.digest(layers, tokens, self._shape.table)
        started = time.perf_counter()
        await asyncio.to_thread(self._write)
        assert self._destination.stdin
        self._destination.stdin.write(b"copy\n")
        found = (await self._hear())["digest"]
        took_s = time.perf_counter() - started
        if found != right.tobytes().hex():
            raise OSError("what D has copied is not what P has written")
        return self._shape.num_bytes / 1e9 / took_s

    def _write(self) -> None:
        """Write all units in pieces, all of them under way at once."""
        num_units, at_once = self._shape.num_layers * self._shape.num_blocks, max(1, MAX_WRITE_BYTES // self._unit_bytes)
        pieces = [np.arange(first, min(first + at_once, num_units), dtype=np.int32) for first in range(0, num_units, at_once)]
        posted = [self._transport.post(D, piece, piece, b"") for piece in pieces]
        for write in posted:
            while (state := self._transport.poll(write)) is WriteState.PENDING:
                pass
            if state is not WriteState.DONE:
                raise OSError("a write has failed")

    async def _hear(self) -> dict[str, Any]:
        assert self._destination.stdout
        line = await self._destination.stdout.readline()
        if not line:
            raise OSError("D has gone")
        told: dict[str, Any] = json.loads(line)
        return told


def _be_written_to(shape: Shape) -> None:
    cache = shape.cache()
    landing = cache.open_memory(shape.num_bytes)
    transport, region = NixlTransport(D), landing.region()
    transport.register_landing(region)
    where = {"address": region.address, "kind": region.kind, "device": region.device}
    print(json.dumps({**where, "metadata": transport.metadata().hex()}), flush=True)
    piece = LandedPiece(
        range(shape.num_layers), range(shape.num_blocks), TokenRange(0, shape.num_tokens), BLOCK_TOKENS, shape.num_blocks
    )
    is_asked = True
    while is_asked:
        transport.notifications()
        if select.select([sys.stdin], [], [], 100e-6)[0] and (is_asked := bool(sys.stdin.readline())):
            print(json.dumps({"digest": cache.copy_in(region, piece, shape.table).tobytes().hex()}), flush=True)
    transport.close()


if __name__ == "__main__":
    _be_written_to(Shape(*json.loads(sys.argv[1])))
