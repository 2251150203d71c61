"""RMS normalisation of rows, alone or fused with the addition to the residual stream before or after it."""

import triton
import triton.language as tl
from torch import Tensor

from twostep.engine.kernels.gpu.floats import rounded, through
from twostep.engine.kernels.gpu.launches import launch_of


@triton.jit
def _norm_rows(
    x, residual, weight, out, x_stride, residual_stride, out_stride, eps,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ADD_BEFORE: tl.constexpr, ADD_AFTER: tl.constexpr, FROM_ONE: tl.constexpr,
):  # fmt: skip
    """One program a row: it is read once and stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    inside = places < DIM
    dtype = x.dtype.element_ty
    values = tl.load(x + row * x_stride + places, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
    if ADD_BEFORE:
        old = tl.load(residual + row * residual_stride + places, mask=inside, other=0.0).to(tl.float32)
        total = rounded(values + old, dtype)
        tl.store(residual + row * residual_stride + places, total, mask=inside)
        values = total.to(tl.float32)
    normalised = values * tl.rsqrt(tl.sum(values * values, axis=0) / DIM + eps)
    if FROM_ONE:
        result = rounded(normalised * (1.0 + scale), dtype)
    else:
        result = rounded(scale * through(normalised, dtype), dtype)
    if ADD_AFTER:
        old = tl.load(residual + row * residual_stride + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * residual_stride + places, rounded(old + result.to(tl.float32), dtype), mask=inside)
    else:
        tl.store(out + row * out_stride + places, result, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
    """See `KernelSet.rms_norm`."""
    _launch(x, x, weight, out, eps, add_before=False, add_after=False, from_one=from_one)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
    """See `KernelSet.add_rms_norm`."""
    _launch(x, residual, weight, out, eps, add_before=True, add_after=False, from_one=from_one)


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, from_one: bool) -> None:
    """See `KernelSet.rms_norm_add`."""
    _launch(x, residual, weight, residual, eps, add_before=False, add_after=True, from_one=from_one)


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, *, add_before: bool, add_after: bool, from_one: bool
) -> None:
    num_rows, dim = x.shape
    width = triton.next_power_of_2(dim)
    launch = launch_of(x.device, "norm", f"{width}")
    _norm_rows[(num_rows,)](
        x, residual, weight, out, x.stride(0), residual.stride(0), out.stride(0), eps,
        DIM=dim, WIDTH=width, ADD_BEFORE=add_before, ADD_AFTER=add_after, FROM_ONE=from_one,
        num_warps=launch.num_warps,
    )  # fmt: skip
