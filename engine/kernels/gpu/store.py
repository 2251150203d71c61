"""Turns queries and keys to their positions and stores keys and values in the pool: all that lies between two matrices.

One pass over the projection's output, with each head's normalisation where the model has one.
"""

import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.gpu.floats import rounded, through
from twostep.engine.kernels.gpu.launches import launch_of
from twostep.engine.kernels.kernel_set import HeadNorms


@triton.jit
def _normalise(part, weight, inverse, DTYPE: tl.constexpr, FROM_ONE: tl.constexpr):
    """Return a part of heads [head, dim] normalised by `inverse` [head, 1], rounded as `reference` rounds."""
    if FROM_ONE:
        return through(part * inverse * (1.0 + weight), DTYPE)
    return through(weight * through(part * inverse, DTYPE), DTYPE)


@triton.jit
def _norm_weight(query_norm, key_norm, is_query, places, inside):
    """Return the weights [head, dim] of heads, each a query's or a key's."""
    for_query = tl.load(query_norm + places, mask=inside, other=0.0).to(tl.float32)
    for_key = tl.load(key_norm + places, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], for_query[None, :], for_key[None, :])


@triton.jit
def _rotate_and_store(
    qkv, cos, sin, slots, pool, query_norm, key_norm, qkv_stride, angle_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TURNED: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, NORM: tl.constexpr, FROM_ONE: tl.constexpr,
):  # fmt: skip
    """One program for `TILE` heads of one row. A head is three parts: two halves that are turned, and the rest."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE + tl.arange(0, TILE)
    dtype = qkv.dtype.element_ty
    is_query = heads < HEADS
    is_value = heads >= HEADS + KV_HEADS
    exists = heads < HEADS + 2 * KV_HEADS

    places = tl.arange(0, HALF)
    inside = places < TURNED // 2
    mask = exists[:, None] & inside[None, :]
    source = qkv + row * qkv_stride + heads[:, None] * DIM + places[None, :]
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + TURNED // 2, mask=mask, other=0.0).to(tl.float32)
    rests = TURNED + tl.arange(0, REST)
    rest_inside = rests < DIM
    rest_mask = exists[:, None] & rest_inside[None, :]
    rest_source = qkv + row * qkv_stride + heads[:, None] * DIM + rests[None, :]
    if TURNED < DIM:
        rest = tl.load(rest_source, mask=rest_mask, other=0.0).to(tl.float32)

    if NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if TURNED < DIM:
            squares += tl.sum(rest * rest, axis=1)
        inverse = tl.rsqrt(squares / DIM + eps)[:, None]
        weight = _norm_weight(query_norm, key_norm, is_query, places, inside)
        first = tl.where(is_value[:, None], first, _normalise(first, weight, inverse, dtype, FROM_ONE))
        weight = _norm_weight(query_norm, key_norm, is_query, TURNED // 2 + places, inside)
        second = tl.where(is_value[:, None], second, _normalise(second, weight, inverse, dtype, FROM_ONE))
        if TURNED < DIM:
            weight = _norm_weight(query_norm, key_norm, is_query, rests, rest_inside)
            rest = tl.where(is_value[:, None], rest, _normalise(rest, weight, inverse, dtype, FROM_ONE))

    cosine = tl.load(cos + row * angle_stride + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sin + row * angle_stride + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    turned_first = rounded(tl.where(is_value[:, None], first, first * cosine - second * sine), dtype)
    turned_second = rounded(tl.where(is_value[:, None], second, second * cosine + first * sine), dtype)

    tl.store(source, turned_first, mask=mask & is_query[:, None])
    tl.store(source + TURNED // 2, turned_second, mask=mask & is_query[:, None])
    slot = tl.load(slots + row).to(tl.int64)
    stored_end = tl.where(slot >= 0, HEADS + 2 * KV_HEADS, 0)
    is_stored = ((heads >= HEADS) & (heads < stored_end))[:, None]
    kv_head = tl.where(is_value, heads - HEADS - KV_HEADS, heads - HEADS)
    line = ((slot // BLOCK_TOKENS) * KV_HEADS + kv_head) * BLOCK_TOKENS + slot % BLOCK_TOKENS
    target = pool + (line * 2 + is_value.to(tl.int64))[:, None] * DIM
    tl.store(target + places[None, :], turned_first, mask=mask & is_stored)
    tl.store(target + TURNED // 2 + places[None, :], turned_second, mask=mask & is_stored)
    if TURNED < DIM:
        kept = rounded(rest, dtype)
        tl.store(rest_source, kept, mask=rest_mask & is_query[:, None])
        tl.store(target + rests[None, :], kept, mask=rest_mask & is_stored)


def rotate_and_store(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool: Tensor, norms: HeadNorms | None) -> None:
    """See `KernelSet.rotate_and_store`."""
    num_rows, num_all_heads, dim = qkv.shape
    _, num_kv_heads, block_tokens, _, _ = pool.shape
    turned = cos.shape[-1]
    launch = launch_of(qkv.device, "store", "any")
    _rotate_and_store[(num_rows, triton.cdiv(num_all_heads, launch.tile))](
        qkv, cos, sin, slots, pool, norms.query if norms else qkv, norms.key if norms else qkv,
        qkv.stride(0), cos.stride(0), norms.eps if norms else 0.0,
        HEADS=num_all_heads - 2 * num_kv_heads, KV_HEADS=num_kv_heads, DIM=dim, TURNED=turned, BLOCK_TOKENS=block_tokens,
        TILE=launch.tile, HALF=triton.next_power_of_2(turned // 2), REST=triton.next_power_of_2(max(1, dim - turned)),
        NORM=norms is not None, FROM_ONE=norms is not None and norms.from_one, num_warps=launch.num_warps,
    )  # fmt: skip
