"""Every kernel against its reference on the same device, in both types and the shapes of both models, odd lengths included."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostep.benchmarks.gpu_rows.stage import BLOCK_TOKENS, Stage, seeded
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.request import SamplingParams
from twostep.core.ticket import TokenRange
from twostep.engine.batch import Draw
from twostep.engine.kernels.draw_rows import draw_rows
from twostep.engine.kernels.kernel_set import HeadNorms, KernelSet
from twostep.engine.kernels.reference import Score
from twostep.engine.kernels.twins import TorchKernels
from twostep.engine.kv_cache import HostKVCache, KVCache
from twostep.engine.torch_kv_cache import TorchKVCache

KERNELS_RIGHT = "kernels whose results differ from their references'"
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the largest number: sums are made in another order, and in bfloat16 rounded in other places."""
WAYS_TO_DRAW = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 40, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.3, 0, 1.0, 0.05),
    (0.9, 7, 0.8, 0.01),
)
"""Temperature, top-k, top-p and min-p."""
Result = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Heads:
    num: int
    num_kv: int
    dim: int

    def __str__(self) -> str:
        return f"{self.num}/{self.num_kv} heads of {self.dim}"

    def pool_shape(self, lengths: Sequence[int]) -> tuple[int, int, int, int, int]:
        """Return the shape of a pool that holds sequences of these lengths."""
        return sum(-(-length // BLOCK_TOKENS) for length in lengths), self.num_kv, BLOCK_TOKENS, 2, self.dim


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel in one shape: `run` gives it fresh inputs, the same each time, and returns what it wrote."""

    name: str
    dtype: torch.dtype
    run: Callable[[KernelSet], Result]


def kernel_checks(stage: Stage) -> Measurement:
    async def measure(_: Effort) -> Outcomes:
        wrong = [f"{case.name}: {why}" for case in cases(stage) if (why := difference(case, stage))]
        wrong += block_faults(stage)
        return {KERNELS_RIGHT: Measured((float(len(wrong)),), note="; ".join(wrong[:5]))}

    return Measurement((KERNELS_RIGHT,), measure)


def difference(case: Case, stage: Stage) -> str:
    """Return how far the kernel is from its reference; empty when it is near enough."""
    try:
        with torch.inference_mode():
            found, right = case.run(stage.device.kernels), case.run(TorchKernels())
            stage.device.finish()
    except Exception as cause:  # noqa: BLE001 - a kernel that does not even run is told among those that are wrong
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    for ours, theirs in zip(found, right, strict=True):
        if not ours.is_floating_point():
            if not torch.equal(ours, theirs):
                return f"{int((ours != theirs).sum())} of {ours.numel()} differ"
            continue
        off = (ours.float() - theirs.float()).abs().max().item() / max(1e-6, theirs.float().abs().max().item())
        if not off <= TOLERANCE[case.dtype]:
            return f"off by {off:.2g} of the largest"
    return ""


def cases(stage: Stage) -> Iterator[Case]:
    shapes = [Heads(2, 1, 16)] if stage.why_dry else [Heads(16, 8, 128), Heads(32, 8, 128), Heads(8, 1, 64)]
    lengths = [1, 7, 40] if stage.why_dry else [1, 7, 40, 129, 1000, 4001]
    for dtype in (torch.bfloat16, torch.float32):
        make = _Maker(stage, dtype)
        yield from make.rows(dim=48 if stage.why_dry else 4096)
        for heads in shapes:
            yield from make.storing(heads, lengths)
            yield from make.attention(heads, lengths)
        yield from make.sampling(vocab=131 if stage.why_dry else 151936)


class _Maker:
    """Makes cases of one type. Numbers are drawn anew, alike, for each run: kernels write over their inputs."""

    def __init__(self, stage: Stage, dtype: torch.dtype) -> None:
        self._stage = stage
        self._dtype = dtype
        self._place = stage.device.place

    def rows(self, dim: int, num: int = 5) -> Iterator[Case]:
        def norm(kernels: KernelSet) -> Result:
            x, weight = self._numbers((num, dim), (dim,))
            kernels.rms_norm(x, weight, out := torch.empty_like(x), eps=1e-6, from_one=True)
            return [out]

        def add_norm(kernels: KernelSet) -> Result:
            x, residual, weight = self._numbers((num, dim), (num, dim), (dim,))
            kernels.add_rms_norm(x, residual, weight, x, eps=1e-6, from_one=False)
            return [x, residual]

        def norm_add(kernels: KernelSet) -> Result:
            x, residual, weight = self._numbers((num, dim), (num, dim), (dim,))
            kernels.rms_norm_add(x, residual, weight, eps=1e-6, from_one=True)
            return [residual]

        def activate(kernels: KernelSet) -> Result:
            (both,) = self._numbers((num, 2 * dim))
            outs = [both.new_empty((num, dim)) for _ in range(2)]
            kernels.silu_and_multiply(both, outs[0])
            kernels.gelu_and_multiply(both, outs[1])
            return outs

        named = {"rms_norm": norm, "add_rms_norm": add_norm, "rms_norm_add": norm_add, "activations": activate}
        for name, run in named.items():
            yield self._case(name, run)

    def storing(self, heads: Heads, lengths: Sequence[int]) -> Iterator[Case]:
        num_rows = len(lengths)

        def store(kernels: KernelSet, *, is_normed: bool) -> Result:
            qkv, pool, cos, sin, query, key = self._numbers(
                (num_rows, heads.num + 2 * heads.num_kv, heads.dim),
                heads.pool_shape(lengths),
                (num_rows, heads.dim // 2),
                (num_rows, heads.dim // 2),
                (heads.dim,),
                (heads.dim,),
            )
            slots = torch.tensor([-1, *range(BLOCK_TOKENS - 1, BLOCK_TOKENS + num_rows - 2)], device=self._place)
            norms = HeadNorms(query, key, 1e-6, from_one=False) if is_normed else None
            kernels.rotate_and_store(qkv, cos.repeat(1, 2), sin.repeat(1, 2), slots, pool, norms)
            return [qkv[:, : heads.num], pool]

        yield self._case(f"rotate_and_store, {heads}", lambda kernels: store(kernels, is_normed=False))
        yield self._case(f"rotate_and_store with norms, {heads}", lambda kernels: store(kernels, is_normed=True))

    def attention(self, heads: Heads, lengths: Sequence[int]) -> Iterator[Case]:
        pool_shape = heads.pool_shape(lengths)

        def decodes(kernels: KernelSet, window: int | None, score: Score) -> Result:
            query, pool = self._numbers((len(lengths), heads.num, heads.dim), pool_shape)
            scratch = kernels.decode_scratch(len(lengths), heads.num, heads.num_kv, heads.dim, self._place)
            out, num_keys = torch.empty_like(query), self._ints([0, *lengths[1:]])
            kernels.attend_decodes(query, pool, self._tables(lengths), num_keys, out, scratch, score=score, window=window)
            return [out]

        def chunks(kernels: KernelSet, window: int | None, score: Score) -> Result:
            fresh = [max(1, length * 2 // 3) for length in lengths]
            starts = [0, *np.cumsum(fresh).tolist()]
            query, pool = self._numbers((starts[-1], heads.num, heads.dim), pool_shape)
            out = torch.empty_like(query)
            sizes = self._tables(lengths), self._ints(starts), self._ints(lengths)
            kernels.attend_chunks(query, pool, *sizes, out, score=score, window=window)
            return [out]

        yield self._case(f"attend_decodes, {heads}", lambda kernels: decodes(kernels, None, Score()))
        yield self._case(f"attend_decodes in a window, {heads}", lambda kernels: decodes(kernels, 37, Score(0.2, 30.0)))
        yield self._case(f"attend_chunks, {heads}", lambda kernels: chunks(kernels, None, Score()))
        yield self._case(f"attend_chunks in a window, {heads}", lambda kernels: chunks(kernels, 37, Score(0.2, 30.0)))

    def sampling(self, vocab: int) -> Iterator[Case]:
        draws = [Draw(SamplingParams(seed, *way), index=seed) for seed, way in enumerate(WAYS_TO_DRAW)]

        def sample(kernels: KernelSet) -> Result:
            (logits,) = self._numbers((len(draws) + 1, vocab))
            logits = logits * 4
            logits[-1, 3] = torch.nan
            rows = draw_rows([*draws, None]).to(self._place)
            tokens = torch.zeros(len(draws) + 1, dtype=torch.int64, device=self._place)
            kernels.sample(logits, rows, tokens, kernels.sample_scratch(len(draws) + 1, vocab, self._place))
            return [tokens]

        yield self._case("sample", sample)

    def _case(self, name: str, run: Callable[[KernelSet], Result]) -> Case:
        return Case(f"{name}, {str(self._dtype).removeprefix('torch.')}", self._dtype, run)

    def _numbers(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        chance = seeded(3, self._place)
        return [torch.randn(shape, generator=chance, device=self._place, dtype=self._dtype) for shape in shapes]

    def _ints(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self._place)

    def _tables(self, lengths: Sequence[int]) -> Tensor:
        """Return tables that lie in the pool backwards: neighbours in a sequence are none in memory."""
        counts = [-(-length // BLOCK_TOKENS) for length in lengths]
        tables, left = torch.zeros((len(lengths), max(counts)), dtype=torch.int32), sum(counts)
        for row, count in enumerate(counts):
            tables[row, :count] = torch.arange(left - 1, left - count - 1, -1)
            left -= count
        return tables.to(self._place)


def block_faults(stage: Stage) -> list[str]:
    """Copy blocks in, whole and in part, and digest them: bit for bit what the host's cache does."""
    layout = KVLayout(2, 2, 16, BLOCK_TOKENS, "bfloat16")
    host, ours = HostKVCache(layout, 8), TorchKVCache(layout, 8, stage.device.place)
    caches: tuple[KVCache, KVCache] = host, ours
    landed = np.random.default_rng(4).integers(0, 1 << 32, (2, 3, *layout.pool_shape(1)[2:]), dtype=np.uint32)
    there = torch.from_numpy(landed.view(np.int32)).to(stage.device.place)
    stage.device.finish()
    kind = {} if stage.why_dry else {"kind": "VRAM", "device": stage.device.place.index or 0}
    regions = MemoryRegion(landed.ctypes.data, landed.nbytes), MemoryRegion(there.data_ptr(), there.nbytes, **kind)  # type: ignore[arg-type]
    piece = LandedPiece(range(2), range(3), TokenRange(0, 75), BLOCK_TOKENS, 3)
    table = tuple(map(BlockId, (5, 2, 7)))
    right, found = (cache.copy_in(region, piece, table) for cache, region in zip(caches, regions, strict=True))
    stage.device.finish()
    faults = []
    if not np.array_equal(right, found):
        faults.append("digests of copies differ")
    if not np.array_equal(host.words[:, list(table)], ours.words.cpu().numpy().view(np.uint32)[:, list(table)]):
        faults.append("copies differ")
    whole = TokenRange(3, 70)
    if not np.array_equal(host.digest(range(2), whole, table), ours.digest(range(2), whole, table)):
        faults.append("digests of blocks differ")
    return faults
