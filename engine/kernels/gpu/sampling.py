"""Draws a token for each row of logits without sorting them: a token is proposed first, then it is shown to be allowed.

The token with the largest noisy logit is the answer if the filters allow it, and they do if few enough logits, or too little
probability, lie above its own. If they do not, everything at its logit and below is out as well, and the best of the rest is
proposed. All filters are thresholds, so what is accepted is the best of what is allowed, as in `engine.sampler`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.draw_rows import DrawRows
from twostep.engine.kernels.gpu.bits import GAMMA, mix
from twostep.engine.kernels.gpu.launches import launch_of
from twostep.engine.kernels.kernel_set import SampleScratch

LARGEST = tl.constexpr(3.4028234663852886e38)
NO_TOKEN = tl.constexpr(0x7FFFFFFF)
DIGITS = tl.constexpr(1 << 11)
STAGES = tl.constexpr(4)


@triton.jit
def _best(values, tokens):
    """Return the largest of `values` [n] and, of the tokens that have it, the first."""
    largest = tl.max(values, axis=0)
    return largest, tl.min(tl.where(values == largest, tokens, NO_TOKEN), axis=0)


@triton.jit
def _gumbel(tokens, key):
    """Return `engine.sampler.gumbel` for `tokens` [n] of the draw whose key is uint64 `key` [1]."""
    bits = mix(tokens.to(tl.uint64) * tl.full([1], GAMMA, tl.uint64) + key)
    uniform = ((bits >> 11) | 1).to(tl.int64).to(tl.float32) * 1.1102230246251565e-16
    # log1p(-u) as u * log(1 - u) / ((1 - u) - 1), which has its precision where 1 - u has lost it (Kahan).
    rest = 1.0 - uniform
    lost = 1.0 - rest
    exponential = tl.where(lost == 0.0, uniform, -tl.log(rest) * uniform / tl.where(lost == 0.0, 1.0, lost))
    return -tl.log(exponential)


@triton.jit
def _find_peaks(logits, peaks, peak_tokens, stride, vocab_size, PARTS: tl.constexpr, TILE: tl.constexpr):
    """One program a part: its largest logit, infinite where any is no finite number, and the first token that has it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    tokens = part * TILE + tl.arange(0, TILE)
    inside = tokens < vocab_size
    values = tl.load(logits + row * stride + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    is_sound = (tl.abs(values) <= LARGEST) | (tokens >= vocab_size)
    peak, token = _best(tl.where(is_sound, values, float("inf")), tokens)
    tl.store(peaks + row * PARTS + part, peak)
    tl.store(peak_tokens + row * PARTS + part, token)


@triton.jit
def _propose(
    logits, keys, temperatures, leasts, peaks, best, best_tokens, masses, stride, vocab_size,
    PARTS: tl.constexpr, ALL_PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program a part: the token of its largest noisy logit, and the sum of its unnormalised probabilities."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.arange(0, ALL_PARTS)
    top = tl.max(tl.load(peaks + row * PARTS + parts, mask=parts < PARTS, other=float("-inf")), axis=0)
    temperature = tl.load(temperatures + row)
    if (temperature <= 0.0) | (top > LARGEST):
        return
    tokens = part * TILE + tl.arange(0, TILE)
    inside = tokens < vocab_size
    values = tl.load(logits + row * stride + tokens, mask=inside, other=0.0).to(tl.float32)
    scaled = tl.where(inside, tl.div_rn(values - top, temperature), float("-inf"))
    key = tl.load(keys + row + tl.arange(0, 1)).to(tl.uint64, bitcast=True)
    eligible = inside & (scaled >= tl.load(leasts + row))
    noisy, token = _best(tl.where(eligible, scaled + _gumbel(tokens, key), float("-inf")), tokens)
    tl.store(best + row * PARTS + part, noisy)
    tl.store(best_tokens + row * PARTS + part, token)
    tl.store(masses + row * PARTS + part, tl.sum(tl.exp(scaled), axis=0))


@triton.jit
def _scaled_tile(logits, first, top, temperature, vocab_size, TILE: tl.constexpr):
    """Return the scaled logits of a tile of tokens, -inf beyond the vocabulary, and the tokens."""
    tokens = first + tl.arange(0, TILE)
    values = tl.load(logits + tokens, mask=tokens < vocab_size, other=0.0).to(tl.float32)
    scaled = tl.div_rn(values - top, temperature)
    return tl.where(tokens < vocab_size, scaled, float("-inf")), tokens


@triton.jit
def _mass_of_largest(logits, count, top, temperature, vocab_size, TILE: tl.constexpr):
    """Return the sum of unnormalised probabilities of the `count` largest scaled logits and of those equal to the last.

    Scaled logits are not above zero, so that their bits without the sign order them: the last one's are found by digits of 11
    bits, of which each shares one with the digit before it.
    """
    prefix = tl.zeros([1], tl.uint32)
    known = tl.zeros([1], tl.uint32)
    left = count
    for shift in tl.static_range(20, -1, -10):
        bins = tl.zeros([DIGITS], tl.int32)
        for first in tl.range(0, vocab_size, TILE, num_stages=STAGES):
            scaled, tokens = _scaled_tile(logits, first, top, temperature, vocab_size, TILE)
            size = tl.abs(scaled).to(tl.uint32, bitcast=True)
            counted = (tokens < vocab_size) & (((size ^ prefix) & known) == 0)
            bins += tl.histogram(((size >> shift) & (DIGITS - 1)).to(tl.int32), DIGITS, mask=counted)
        sums = tl.cumsum(bins, axis=0)
        found = tl.sum((sums < left).to(tl.int32), axis=0)
        left -= tl.sum(tl.where(tl.arange(0, DIGITS) < found, bins, 0), axis=0)
        prefix |= found.to(tl.uint32) << shift
        known |= tl.full([1], DIGITS - 1, tl.uint32) << shift
    mass = tl.zeros([TILE], tl.float32)
    for first in tl.range(0, vocab_size, TILE, num_stages=STAGES):
        scaled, _ = _scaled_tile(logits, first, top, temperature, vocab_size, TILE)
        mass += tl.where(tl.abs(scaled).to(tl.uint32, bitcast=True) <= prefix, tl.exp(scaled), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _decide(
    logits, keys, temperatures, top_ks, top_ps, leasts, peaks, peak_tokens, best, best_tokens, masses, out, stride, vocab_size,
    PARTS: tl.constexpr, ALL_PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program a row: accepts the proposed token, or proposes the next best above it, until one is allowed."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, ALL_PARTS)
    exists = parts < PARTS
    at = row * PARTS + parts
    top, token = _best(
        tl.load(peaks + at, mask=exists, other=float("-inf")), tl.load(peak_tokens + at, mask=exists, other=NO_TOKEN)
    )
    if top > LARGEST:
        tl.store(out + row, row * 0 - 1)
        return
    temperature = tl.load(temperatures + row)
    if temperature <= 0.0:
        tl.store(out + row, token.to(tl.int64))
        return

    _, token = _best(
        tl.load(best + at, mask=exists, other=float("-inf")), tl.load(best_tokens + at, mask=exists, other=NO_TOKEN)
    )
    top_k = tl.load(top_ks + row)
    has_k = (top_k > 0) & (top_k < vocab_size)
    top_p = tl.load(top_ps + row)
    has_p = top_p < 1.0
    line = logits + row * stride
    bound = top_p * tl.sum(tl.load(masses + at, mask=exists, other=0.0), axis=0)
    if has_k & has_p:
        bound = top_p * _mass_of_largest(line, top_k, top, temperature, vocab_size, TILE)
    key = tl.load(keys + row + tl.arange(0, 1)).to(tl.uint64, bitcast=True)
    least = tl.load(leasts + row)
    is_open = has_k | has_p
    while is_open:
        own = tl.div_rn(tl.load(line + token).to(tl.float32) - top, temperature)
        num_above = tl.zeros([TILE], tl.int32)
        mass_above = tl.zeros([TILE], tl.float32)
        next_noisy = top * 0.0 - LARGEST
        next_token = token
        for first in tl.range(0, vocab_size, TILE, num_stages=STAGES):
            scaled, tokens = _scaled_tile(line, first, top, temperature, vocab_size, TILE)
            is_above = scaled > own
            if tl.max(is_above.to(tl.int32), axis=0) > 0:
                num_above += is_above.to(tl.int32)
                mass_above += tl.where(is_above, tl.exp(scaled), 0.0)
                eligible = is_above & (scaled >= least)
                noisy, at_noisy = _best(tl.where(eligible, scaled + _gumbel(tokens, key), float("-inf")), tokens)
                next_token = tl.where(noisy > next_noisy, at_noisy, next_token)
                next_noisy = tl.maximum(noisy, next_noisy)
        too_many = has_k & (tl.sum(num_above, axis=0) >= top_k)
        too_likely = has_p & (tl.sum(mass_above, axis=0) >= bound)
        is_open = (own < 0.0) & (too_many | too_likely)
        token = tl.where(is_open, next_token, token)
    tl.store(out + row, token.to(tl.int64))


def sample(logits: Tensor, rows: DrawRows, tokens: Tensor, scratch: SampleScratch) -> None:
    """See `KernelSet.sample`. Raises ValueError when the scratch was made for fewer rows or another vocabulary."""
    num_rows, vocab_size = logits.shape
    launch, deciding = launch_of(logits.device, "propose", "any"), launch_of(logits.device, "decide", "any")
    num_parts = triton.cdiv(vocab_size, launch.tile)
    if len(scratch.peaks) < num_rows or scratch.peaks.shape[1] != num_parts:
        raise ValueError(f"scratch of {tuple(scratch.peaks.shape)}: {num_rows} rows of {num_parts} parts need another")
    all_parts = triton.next_power_of_2(num_parts)
    sizes = {"PARTS": num_parts, "TILE": launch.tile, "num_warps": launch.num_warps}
    stride = logits.stride(0)
    _find_peaks[(num_rows, num_parts)](logits, scratch.peaks, scratch.peak_tokens, stride, vocab_size, **sizes)
    _propose[(num_rows, num_parts)](
        logits, rows.keys, rows.temperature, rows.least, scratch.peaks, scratch.best, scratch.best_tokens, scratch.masses,
        stride, vocab_size, ALL_PARTS=all_parts, **sizes,
    )  # fmt: skip
    _decide[(num_rows,)](
        logits, rows.keys, rows.temperature, rows.top_k, rows.top_p, rows.least, scratch.peaks, scratch.peak_tokens,
        scratch.best, scratch.best_tokens, scratch.masses, tokens, stride, vocab_size,
        PARTS=num_parts, ALL_PARTS=all_parts, TILE=deciding.tile, num_warps=deciding.num_warps,
    )  # fmt: skip


def sample_scratch(max_rows: int, vocab_size: int, device: torch.device) -> SampleScratch:
    """See `KernelSet.sample_scratch`."""
    shape = (max_rows, int(triton.cdiv(vocab_size, launch_of(device, "propose", "any").tile)))
    return SampleScratch(
        peaks=torch.empty(shape, dtype=torch.float32, device=device),
        peak_tokens=torch.empty(shape, dtype=torch.int32, device=device),
        best=torch.empty(shape, dtype=torch.float32, device=device),
        best_tokens=torch.empty(shape, dtype=torch.int32, device=device),
        masses=torch.empty(shape, dtype=torch.float32, device=device),
    )
