"""What digests cost on this processor: while KV is computed, and while it is copied in."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, Side, alternate
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import HostMemory
from twostep.core.ticket import TokenRange
from twostep.engine.config import EngineConfig
from twostep.engine.kv_cache import HostKVCache

DIGEST, COPY_IN = "digest of computed KV", "copy-in with digest"
NUM_TOKENS = 512
NUM_BLOCKS = 400
"""More than caches hold."""
REPEATS = 20


class Pool:
    """A KV cache of SmolLM2's shape and a landing extent of one chunk, full of random words; one layer group at a time."""

    def __init__(self) -> None:
        config = EngineConfig()
        self._layout = KVLayout(30, 3, 64, config.block_tokens, config.dtype)
        self._kv = HostKVCache(self._layout, NUM_BLOCKS)
        draw = np.random.default_rng(1)
        self._kv.words[:] = draw.integers(0, 1 << 32, self._kv.words.shape, np.uint32)
        self._num_chunk_blocks = NUM_TOKENS // config.block_tokens
        self._tokens = TokenRange(0, NUM_TOKENS)
        self._layers = range(30 - config.layer_group, 30)
        self.num_bytes = len(self._layers) * self._num_chunk_blocks * self._layout.layer_block_bytes
        self._landing = HostMemory(self._num_chunk_blocks * self._layout.block_bytes, "landing")
        self._landing.bytes[:] = draw.integers(0, 256, self._landing.bytes.nbytes, np.uint8)
        self._spare = np.zeros(self.num_bytes // 4, np.uint32)
        self._turn = 0

    def digest(self) -> None:
        self._kv.digest(self._layers, self._tokens, self._next_table())

    def copy_in(self) -> None:
        piece = LandedPiece(
            self._layers, range(self._num_chunk_blocks), self._tokens, self._layout.block_tokens, self._num_chunk_blocks
        )
        self._kv.copy_in(self._landing.region(), piece, self._next_table())

    def copy(self) -> None:
        """Copy what `copy_in` copies, and do nothing else."""
        words = self._landing.bytes.view(np.uint32).reshape(self._layout.pool_shape(self._num_chunk_blocks))
        layers = slice(self._layers.start, self._layers.stop)
        for landed, block in enumerate(self._next_table()):
            self._kv.words[layers, block] = words[layers, landed]

    def memcpy(self) -> None:
        self._turn += 1
        pool = self._kv.words.reshape(-1)
        start = self._turn * len(self._spare) % (len(pool) - len(self._spare))
        np.copyto(self._spare, pool[start : start + len(self._spare)])

    def _next_table(self) -> list[BlockId]:
        """Return other blocks than last time: what is in the caches is not what is digested next."""
        self._turn += 1
        start = self._turn * self._num_chunk_blocks
        return [BlockId((start + 7 * block) % NUM_BLOCKS) for block in range(self._num_chunk_blocks)]


async def measure(effort: Effort) -> Outcomes:
    pool = Pool()

    def rate(work: Callable[[], None]) -> Side:
        async def side() -> float:
            return pool.num_bytes / 1e9 / _median_s(work)

        return side

    return {
        DIGEST: await alternate(rate(pool.digest), rate(pool.memcpy), effort.rounds),
        COPY_IN: await alternate(rate(pool.copy_in), rate(pool.copy), effort.rounds),
    }


def _median_s(work: Callable[[], None]) -> float:
    durations = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    return median(durations)


DIGEST_COST = Measurement((DIGEST, COPY_IN), measure)
