"""Root-mean-square norm (Zhang & Sennrich, arXiv 1910.07467), fused forward and backward.

Shapes: `T` rows, `D` width.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import rms_norm_ref
from slidepack.kernels.tiles import RmsNormBackwardTiles, elementwise_warps, multiprocessors

__all__ = ["RMSNormFunction", "add_rms_norm", "rms_norm", "rms_norm_bwd", "rms_norm_fwd"]

MAX_WIDTH: Final = 32768
"""A row is held in registers by one program."""
_NARROW_BLOCK: Final = 4096
"""Widest row for which the table's warps were measured."""
_SUM_ROWS: Final = 128
_SUM_COLUMNS: Final = 32


@triton.jit
def _rms_norm_fwd_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    sum_ptr,
    y_ptr,
    scale_ptr,
    width,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * width + columns, mask=inside, other=0.0)
        # The norm sees the sum as it is stored, so that a recomputed pass gives the same bits.
        total = (x + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * width + columns, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(scale_ptr + row, scale)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        weight += 1.0
    tl.store(y_ptr + row * width + columns, x * scale * weight, mask=inside)


@triton.jit
def _rms_norm_bwd_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    scale_ptr,
    dsum_ptr,
    dx_ptr,
    partial_ptr,
    rows,
    width,
    HAS_DSUM: tl.constexpr,
    WEIGHT_GRAD: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        weight += 1.0
    partial = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        offset = tl.cast(row, tl.int64) * width + columns
        x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row)
        normed = x * scale
        if WEIGHT_GRAD:
            partial += dy * normed
        weighted = dy * weight
        dx = scale * (weighted - normed * (tl.sum(weighted * normed, axis=0) / width))
        if HAS_DSUM:
            dx += tl.load(dsum_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + offset, dx, mask=inside)
    if WEIGHT_GRAD:
        tl.store(partial_ptr + program.to(tl.int64) * width + columns, partial, mask=inside)


@triton.jit
def _rms_norm_sum_kernel(
    partial_ptr, out_ptr, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < count) & (columns[None, :] < width)
        acc += tl.load(partial_ptr + row * width + columns[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + columns, tl.sum(acc, axis=0), mask=columns < width)


def rms_norm_fwd(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, *, plus_one: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the forward kernel; return y, the stored sum (x itself without residual), scales."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    y = torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    total = x if residual is None else torch.empty_like(x)
    if rows:
        _rms_norm_fwd_kernel[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            total,
            y,
            scale,
            width,
            eps,
            HAS_RESIDUAL=residual is not None,
            PLUS_ONE=plus_one,
            BLOCK=block,
            num_warps=elementwise_warps(block),
        )
    return y, total, scale


def rms_norm_bwd(
    dy: Tensor,
    total: Tensor,
    weight: Tensor,
    scale: Tensor,
    dsum: Tensor | None,
    *,
    weight_grad: bool,
    plus_one: bool,
    tiles: RmsNormBackwardTiles | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Launch the backward kernel; return the gradient of the sum and of the weight.

    `tiles` are sizes that stand in for the device's own.
    """
    rows, width = total.shape
    block = triton.next_power_of_2(width)
    dx = torch.empty_like(total)
    # Without a weight gradient a program has one row, and nothing to load ahead.
    programs, warps, stages, partial = rows, elementwise_warps(block), 1, dx
    if weight_grad:
        tiles = RmsNormBackwardTiles.of(dy.device) if tiles is None else tiles
        programs = min(rows, tiles.programs_per_multiprocessor * multiprocessors(dy.device))
        warps = tiles.warps if block <= _NARROW_BLOCK else elementwise_warps(block)
        stages = tiles.stages
        partial = torch.empty((programs, width), dtype=torch.float32, device=dy.device)
    if rows:
        _rms_norm_bwd_kernel[(programs,)](
            dy,
            total,
            weight,
            scale,
            dy if dsum is None else dsum,
            dx,
            partial,
            rows,
            width,
            HAS_DSUM=dsum is not None,
            WEIGHT_GRAD=weight_grad,
            PLUS_ONE=plus_one,
            STAGES=stages,
            BLOCK=block,
            num_warps=warps,
        )
    if not weight_grad:
        return dx, None
    if not rows:
        return dx, torch.zeros_like(weight)
    dweight = torch.empty_like(weight)
    _rms_norm_sum_kernel[(triton.cdiv(width, _SUM_COLUMNS),)](
        partial, dweight, programs, width, ROWS=_SUM_ROWS, BLOCK=_SUM_COLUMNS, num_warps=8
    )
    return dx, dweight


class RMSNormFunction(torch.autograd.Function):
    """Autograd of the two kernels; saves the sum, the weight and one scale a row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        eps: float,
        plus_one: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return y and the sum that later layers add to."""
        y, total, scale = rms_norm_fwd(x, weight, eps, residual, plus_one=plus_one)
        ctx.save_for_backward(total, weight, scale)
        ctx.plus_one = plus_one
        ctx.has_residual = residual is not None
        if residual is None:
            ctx.mark_non_differentiable(empty := total.new_empty(0))
            return y, empty
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dsum: Tensor) -> Any:
        """Return the gradients of x, weight and residual."""
        total, weight, scale = ctx.saved_tensors
        dx, dweight = rms_norm_bwd(
            dy.contiguous(),
            total,
            weight,
            scale,
            dsum.contiguous() if ctx.has_residual else None,
            weight_grad=ctx.needs_input_grad[1],
            plus_one=ctx.plus_one,
        )
        return dx, dweight, dx if ctx.has_residual else None, None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """Root-mean-square norm: `x * rsqrt(mean(x²) + eps) * weight`, statistics in fp32.

    Equivalent to `rms_norm_ref`; on a GPU the product is rounded once instead of twice.

    Args:
        x: [T, D].
        weight: [D], same dtype and device.
        eps: added to the mean square.
        plus_one: scale by 1 + weight, as Gemma does.

    Returns:
        [T, D] in the dtype of `x`.

    Raises:
        ValueError: shapes or dtypes do not fit, or D is above 32768.
    """
    _check(x, weight)
    if not x.is_cuda:
        return rms_norm_ref(x, weight, eps, plus_one=plus_one)
    y: Tensor = RMSNormFunction.apply(x.contiguous(), weight, None, eps, plus_one)[0]
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    """Add a residual, then norm: one pass instead of two.

    Equivalent to `total = x + residual; return rms_norm_ref(total, weight, eps), total`.

    Args:
        x: [T, D].
        residual: as `x`.
        weight: [D].
        eps: added to the mean square.
        plus_one: scale by 1 + weight.

    Returns:
        The norm and the sum, each [T, D].

    Raises:
        ValueError: shapes or dtypes do not fit, or D is above 32768.
    """
    _check(x, weight)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"residual is {tuple(residual.shape)} {residual.dtype}, x is {tuple(x.shape)} {x.dtype}"
        )
    if not x.is_cuda:
        total = x + residual
        return rms_norm_ref(total, weight, eps, plus_one=plus_one), total
    y, total = RMSNormFunction.apply(x.contiguous(), weight, residual.contiguous(), eps, plus_one)
    return y, total


def _check(x: Tensor, weight: Tensor) -> None:
    if x.ndim != 2 or weight.shape != x.shape[1:] or weight.dtype != x.dtype:
        raise ValueError(
            f"x is {tuple(x.shape)} {x.dtype}, weight is {tuple(weight.shape)} {weight.dtype}; "
            "they must be [T, D] and [D] of one dtype"
        )
    if x.shape[1] > MAX_WIDTH:
        raise ValueError(f"D is {x.shape[1]}; at most {MAX_WIDTH}")
