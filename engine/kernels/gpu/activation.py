"""The gates of a feed-forward block: an activation of one half, times the other."""

import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.gpu.floats import rounded, tanh, through
from twostep.engine.kernels.gpu.launches import launch_of

SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)


@triton.jit
def _activate_and_multiply(gate_and_up, out, in_stride, out_stride, DIM: tl.constexpr, WIDTH: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = places < DIM
    dtype = out.dtype.element_ty
    gate = tl.load(gate_and_up + row * in_stride + places, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_and_up + row * in_stride + DIM + places, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        bent = 0.5 * gate * (1.0 + tanh((gate + 0.044715 * gate * gate * gate) * SQRT_2_OVER_PI))
    else:
        bent = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * out_stride + places, rounded(through(bent, dtype) * up, dtype), mask=inside)


def silu_and_multiply(gate_and_up: Tensor, out: Tensor) -> None:
    """See `KernelSet.silu_and_multiply`."""
    _launch(gate_and_up, out, gelu=False)


def gelu_and_multiply(gate_and_up: Tensor, out: Tensor) -> None:
    """See `KernelSet.gelu_and_multiply`."""
    _launch(gate_and_up, out, gelu=True)


def _launch(gate_and_up: Tensor, out: Tensor, *, gelu: bool) -> None:
    num_rows, dim = out.shape
    launch = launch_of(out.device, "activation", "any")
    _activate_and_multiply[(num_rows, triton.cdiv(dim, launch.tile))](
        gate_and_up, out, gate_and_up.stride(0), out.stride(0),
        DIM=dim, WIDTH=launch.tile, GELU=gelu, num_warps=launch.num_warps,
    )  # fmt: skip
