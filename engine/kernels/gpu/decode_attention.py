"""Attention from one token of each sequence over its blocks, the context split among programs whose number is fixed.

How a context is split follows from its length, on the device; how many splits there may be, from the size of the batch. So a
captured launch is right for contexts of any length. After FlashAttention (Dao 2023) and Flash-Decoding (Dao et al. 2023).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.gpu.floats import operand, rounded, tanh
from twostep.engine.kernels.gpu.launches import Launch, launch_of
from twostep.engine.kernels.gpu.scores import binary_scales
from twostep.engine.kernels.kernel_set import DecodeScratch
from twostep.engine.kernels.reference import Score

MAX_SPLITS = 64
MIN_DOT_ROWS = 16
"""Tensor cores multiply no fewer rows."""


@triton.jit
def _shares(end, window, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOWED: tl.constexpr):
    """Return the first key that is seen, the keys of each split, and how many splits have any, for keys up to `end`."""
    begin = end * 0
    if WINDOWED:
        begin = tl.maximum(end - window, 0)
    aligned = begin // TILE * TILE
    tiles = (end - aligned + TILE - 1) // TILE
    tiles_each = tl.maximum((tiles + SPLITS - 1) // SPLITS, 1)
    return begin, tiles_each * TILE, (tiles + tiles_each - 1) // tiles_each


@triton.jit
def _attend_split(
    query, pool, tables, num_keys, out, partial, weights, query_stride, table_stride, scale, bend, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for one split of one sequence's keys in one KV head, and all query heads that share it."""
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    end = tl.load(num_keys + sequence)
    begin, share, used = _shares(end, window, TILE, SPLITS, WINDOWED)
    group: tl.constexpr = HEADS // KV_HEADS
    rows = tl.arange(0, ROWS)
    heads = kv_head * group + rows
    dims = tl.arange(0, WIDTH)
    inside = dims < DIM
    mask = (rows < group)[:, None] & inside[None, :]
    target = out + (sequence * HEADS + heads[:, None]) * DIM + dims[None, :]
    if split >= used:
        if SPLITS == 1:
            tl.store(target, tl.zeros([ROWS, WIDTH], out.dtype.element_ty), mask=mask)
        return
    start = begin // TILE * TILE + split * share
    stop = tl.minimum(start + share, end)
    asked = operand(tl.load(query + sequence * query_stride + heads[:, None] * DIM + dims[None, :], mask=mask, other=0.0))

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in tl.range(start, stop, TILE):
        keys = first + tl.arange(0, TILE)
        seen = (keys < stop) & (keys >= begin)
        block = tl.load(tables + sequence * table_stride + keys // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
        lines = ((block * KV_HEADS + kv_head) * BLOCK_TOKENS + keys % BLOCK_TOKENS) * (2 * DIM)
        places = lines[:, None] + dims[None, :]
        # What is masked is not read: a NaN that an earlier owner left would pass through a product with zero.
        key = tl.load(pool + places, mask=seen[:, None] & inside[None, :], other=0.0)
        scores = tl.dot(asked, tl.trans(operand(key)), input_precision=PRECISION)
        if CAPPED:
            scores = tanh(scores * bend)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1) * scale)
        chances = tl.exp2(scores * scale - higher[:, None])
        fading = tl.exp2(highest - higher)
        total = total * fading + tl.sum(chances, axis=1)
        value = tl.load(pool + places + DIM, mask=seen[:, None] & inside[None, :], other=0.0)
        weighing = operand(rounded(chances, value.dtype))
        mixed = tl.dot(weighing, operand(value), mixed * fading[:, None], input_precision=PRECISION)
        highest = higher

    mixed = mixed / total[:, None]
    if used == 1:
        tl.store(target, rounded(mixed, out.dtype.element_ty), mask=mask)
    else:
        place = (sequence * SPLITS + split) * HEADS + heads
        tl.store(partial + place[:, None] * DIM + dims[None, :], mixed, mask=mask)
        tl.store(weights + place, highest + tl.log2(total), mask=rows < group)


@triton.jit
def _join_splits(
    num_keys, out, partial, weights, window,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """One program for one head of one sequence; a sequence without keys gets zeros, one of a single split has its result."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    end = tl.load(num_keys + sequence)
    _, _, used = _shares(end, window, TILE, SPLITS, WINDOWED)
    if used == 1:
        return
    dims = tl.arange(0, WIDTH)
    inside = dims < DIM
    splits = tl.arange(0, SPLITS)
    has_any = splits < used
    place = (sequence * SPLITS + splits) * HEADS + head
    weight = tl.load(weights + place, mask=has_any, other=-1e30)
    shares = tl.where(has_any, tl.exp2(weight - tl.max(weight, axis=0)), 0.0)
    parts = tl.load(partial + place[:, None] * DIM + dims[None, :], mask=has_any[:, None] & inside[None, :], other=0.0)
    joined = tl.sum(parts * shares[:, None], axis=0) / tl.maximum(tl.sum(shares, axis=0), 1e-30)
    tl.store(out + (sequence * HEADS + head) * DIM + dims, rounded(joined, out.dtype.element_ty), mask=inside)


def attend_decodes(
    query: Tensor,
    pool: Tensor,
    tables: Tensor,
    num_keys: Tensor,
    out: Tensor,
    scratch: DecodeScratch,
    *,
    score: Score,
    window: int | None,
) -> None:
    """See `KernelSet.attend_decodes`. Raises ValueError when the scratch was made for fewer sequences."""
    num_sequences, num_heads, dim = query.shape
    _, num_kv_heads, block_tokens, _, _ = pool.shape
    width = triton.next_power_of_2(dim)
    launch = launch_of(query.device, "decode", f"{query.dtype}-{width}".removeprefix("torch."))
    splits = num_splits(launch, num_sequences, num_kv_heads)
    if len(scratch.partial) < num_sequences * splits:
        raise ValueError(f"scratch of {len(scratch.partial)} places: {num_sequences} sequences in {splits} splits need more")
    scale, bend = binary_scales(score, dim)
    is_windowed = window is not None
    _attend_split[(num_sequences, num_kv_heads, splits)](
        query, pool, tables, num_keys, out, scratch.partial, scratch.weights,
        query.stride(0), tables.stride(0), scale, bend, window or 0,
        HEADS=num_heads, KV_HEADS=num_kv_heads, DIM=dim, WIDTH=width,
        ROWS=max(MIN_DOT_ROWS, triton.next_power_of_2(num_heads // num_kv_heads)), BLOCK_TOKENS=block_tokens,
        TILE=launch.tile, SPLITS=splits, CAPPED=score.cap is not None, WINDOWED=is_windowed,
        PRECISION="ieee" if query.dtype.itemsize == 4 else "tf32",
        num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip
    if splits > 1:
        _join_splits[(num_sequences, num_heads)](
            num_keys, out, scratch.partial, scratch.weights, window or 0,
            HEADS=num_heads, DIM=dim, WIDTH=width, TILE=launch.tile, SPLITS=splits, WINDOWED=is_windowed, num_warps=4,
        )  # fmt: skip


def decode_scratch(max_sequences: int, num_heads: int, num_kv_heads: int, dim: int, device: torch.device) -> DecodeScratch:
    """See `KernelSet.decode_scratch`."""
    launches = [launch_of(device, "decode", f"{dtype}-{triton.next_power_of_2(dim)}") for dtype in ("bfloat16", "float32")]
    counts = range(1, max_sequences + 1)
    places = max(count * num_splits(launch, count, num_kv_heads) for launch in launches for count in counts)
    return DecodeScratch(
        partial=torch.empty((places, num_heads, dim), dtype=torch.float32, device=device),
        weights=torch.empty((places, num_heads), dtype=torch.float32, device=device),
    )


def num_splits(launch: Launch, num_sequences: int, num_kv_heads: int) -> int:
    """Return into how many splits a context is cut at most, so that the batch fills the device."""
    wanted = -(-launch.programs // (num_sequences * num_kv_heads))
    return min(MAX_SPLITS, int(triton.next_power_of_2(max(1, wanted))))
