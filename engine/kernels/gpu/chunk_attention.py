"""Attention from chunks of several sequences, each over its blocks: the prefix that was there and the chunk just stored.

The query heads that share a KV head are rows of one tile, token after token: a key is read once for all of them, and chunks
of any lengths, single tokens too, are cut into tiles alike. After FlashAttention (Dao 2023).
"""

import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.gpu.floats import operand, rounded, tanh
from twostep.engine.kernels.gpu.launches import launch_of
from twostep.engine.kernels.gpu.scores import binary_scales
from twostep.engine.kernels.reference import Score


@triton.jit
def _first_tile(row_starts, sequence, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the number of a sequence's first tile, numbered so that every sequence has enough, whatever their lengths."""
    return tl.load(row_starts + sequence) * GROUP // ROWS + sequence


@triton.jit
def _sequence_of(tile, row_starts, num_sequences, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the last sequence whose first tile is not after `tile`."""
    low = tile * 0
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        is_before = _first_tile(row_starts, middle, GROUP, ROWS) <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    return low


@triton.jit
def _advance(
    asked, highest, total, mixed, first, stop, positions, pool, table, kv_head, scale, bend, window,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in one tile of keys. Unless `MASKED`, every row sees all of it."""
    keys = first + tl.arange(0, TILE)
    dims = tl.arange(0, WIDTH)
    inside = dims < DIM
    exists = keys < stop
    if MASKED:
        mask = exists[:, None] & inside[None, :]
        block = tl.load(table + keys // BLOCK_TOKENS, mask=exists, other=0).to(tl.int64)
    else:
        mask = tl.full([TILE, 1], True, tl.int1) & inside[None, :]
        block = tl.load(table + keys // BLOCK_TOKENS).to(tl.int64)
    places = ((block * KV_HEADS + kv_head) * BLOCK_TOKENS + keys % BLOCK_TOKENS)[:, None] * (2 * DIM) + dims[None, :]
    key = tl.load(pool + places, mask=mask, other=0.0)
    scores = tl.dot(asked, tl.trans(operand(key)), input_precision=PRECISION)
    if CAPPED:
        scores = tanh(scores * bend)
    if MASKED:
        seen = keys[None, :] <= positions[:, None]
        if WINDOWED:
            seen = seen & (keys[None, :] > positions[:, None] - window)
        scores = tl.where(seen & exists[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, axis=1) * scale)
    # In a window's first tile a row may see nothing yet.
    anchor = tl.where(higher == float("-inf"), 0.0, higher) if WINDOWED else higher
    chances = tl.exp2(scores * scale - anchor[:, None])
    fading = tl.exp2(highest - anchor)
    total = total * fading + tl.sum(chances, axis=1)
    value = tl.load(pool + places + DIM, mask=mask, other=0.0)
    weighing = operand(rounded(chances, value.dtype))
    mixed = tl.dot(weighing, operand(value), mixed * fading[:, None], input_precision=PRECISION)
    return higher, total, mixed


# Where the chunks' part of a step begins depends on its decodes: no other kernel is to be compiled for that.
@triton.jit(do_not_specialize=["num_sequences"], do_not_specialize_on_alignment=["tables", "num_keys"])
def _attend_tile(
    query, pool, tables, row_starts, num_keys, out, query_stride, out_stride, table_stride, num_sequences, scale, bend, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for `ROWS` (token, head) pairs of one sequence in one KV head. The longest contexts go first."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    sequence = _sequence_of(tile, row_starts, num_sequences, group, ROWS)
    row_start = tl.load(row_starts + sequence)
    num_tokens = tl.load(row_starts + sequence + 1) - row_start
    first_row = (tile - _first_tile(row_starts, sequence, group, ROWS)) * ROWS
    if first_row >= num_tokens * group:
        return

    rows = first_row + tl.arange(0, ROWS)
    tokens = rows // group
    heads = kv_head * group + rows % group
    dims = tl.arange(0, WIDTH)
    mask = (tokens < num_tokens)[:, None] & (dims < DIM)[None, :]
    lines = (row_start + tokens).to(tl.int64)
    asked = tl.load(query + lines[:, None] * query_stride + heads[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
    asked = operand(asked)

    before = tl.load(num_keys + sequence) - num_tokens
    # Rows beyond the chunk stand where its last token does: every row sees something.
    positions = before + tl.minimum(tokens, num_tokens - 1)
    lowest = before + first_row // group
    stop = before + tl.minimum((first_row + ROWS - 1) // group + 1, num_tokens)
    table = tables + sequence.to(tl.int64) * table_stride
    if WINDOWED:
        begin = tl.maximum(lowest - window + 1, 0) // TILE * TILE
        whole = begin
    else:
        begin = 0
        whole = (lowest + 1) // TILE * TILE

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    if not WINDOWED:
        for first in tl.range(begin, whole, TILE):
            highest, total, mixed = _advance(
                asked, highest, total, mixed, first, stop, positions, pool, table, kv_head, scale, bend, window,
                KV_HEADS, DIM, WIDTH, BLOCK_TOKENS, TILE, CAPPED, WINDOWED, False, PRECISION,
            )  # fmt: skip
    for first in tl.range(whole, stop, TILE):
        highest, total, mixed = _advance(
            asked, highest, total, mixed, first, stop, positions, pool, table, kv_head, scale, bend, window,
            KV_HEADS, DIM, WIDTH, BLOCK_TOKENS, TILE, CAPPED, WINDOWED, True, PRECISION,
        )  # fmt: skip
    target = out + lines[:, None] * out_stride + heads[:, None] * DIM + dims[None, :]
    tl.store(target, rounded(mixed / total[:, None], out.dtype.element_ty), mask=mask)


def attend_chunks(
    query: Tensor,
    pool: Tensor,
    tables: Tensor,
    row_starts: Tensor,
    num_keys: Tensor,
    out: Tensor,
    *,
    score: Score,
    window: int | None,
) -> None:
    """See `KernelSet.attend_chunks`."""
    num_rows, num_heads, dim = query.shape
    _, num_kv_heads, block_tokens, _, _ = pool.shape
    num_sequences = len(num_keys)
    width = triton.next_power_of_2(dim)
    launch = launch_of(query.device, "chunk", f"{query.dtype}-{width}".removeprefix("torch."))
    num_tiles = num_rows * (num_heads // num_kv_heads) // launch.rows + num_sequences
    _attend_tile[(num_tiles, num_kv_heads)](
        query, pool, tables, row_starts, num_keys, out, query.stride(0), out.stride(0), tables.stride(0), num_sequences,
        *binary_scales(score, dim), window or 0,
        HEADS=num_heads, KV_HEADS=num_kv_heads, DIM=dim, WIDTH=width, BLOCK_TOKENS=block_tokens,
        ROWS=launch.rows, TILE=launch.tile, CAPPED=score.cap is not None, WINDOWED=window is not None,
        PRECISION="ieee" if query.dtype.itemsize == 4 else "tf32",
        num_warps=launch.num_warps, num_stages=launch.num_stages,
    )  # fmt: skip
