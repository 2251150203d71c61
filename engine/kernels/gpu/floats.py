"""Arithmetic on floats that kernels share, and what Triton's interpreter needs done differently.

The interpreter holds bfloat16 as bare 16-bit words: it cannot multiply them, and cuts them off where hardware rounds.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Return float32 `x` rounded to the nearest number of type `DTYPE`, ties to even."""
    if INTERPRETED:
        if DTYPE == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            bits = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
            return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def through(x, DTYPE: tl.constexpr):
    """Return float32 `x` as it is after being stored as `DTYPE` and read again."""
    return rounded(x, DTYPE).to(tl.float32)


@triton.jit
def operand(x):
    """Return `x` as `tl.dot` takes it."""
    if INTERPRETED:
        return x.to(tl.float32)
    return x


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, to about 1e-7."""
    falling = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - falling) / (1.0 + falling)
    return tl.where(x < 0.0, -size, size)
