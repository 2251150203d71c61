"""The pseudo-random 64-bit numbers that digests and draws are made of: the kernels' splitmix64."""

import triton
import triton.language as tl

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mix(z):
    """Return splitmix64's output function of uint64 `z` (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ (z >> 30)) * tl.full([1], FIRST, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([1], SECOND, tl.uint64)
    return z ^ (z >> 31)


@triton.jit
def splitmix64(counter):
    """Return `core.digest.splitmix64` of uint64 `counter` [n]."""
    return mix(counter * tl.full([1], GAMMA, tl.uint64))
