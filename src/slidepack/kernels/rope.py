"""Rotary embedding (Su et al., arXiv 2104.09864) of queries and keys in one launch.

Shapes: `T` tokens, `N` query heads, `K` key heads, `H` head size, `P` rotated part of it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import rope_ref

__all__ = ["RopeFunction", "rope", "rope_launch"]


@triton.jit
def _rotate(
    in_ptr,
    out_ptr,
    in_stride,
    out_stride,
    token,
    heads,
    cos,
    sin,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < heads) & (column < HALF)
    source = in_ptr + token * in_stride + head * HEAD + column
    target = out_ptr + token * out_stride + head * HEAD + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, first * cos - second * sin, mask=inside)
    tl.store(target + HALF, second * cos + first * sin, mask=inside)
    if BLOCK_REST > 0:
        rest = tl.arange(0, BLOCK_REST)[None, :]
        kept = (head < heads) & (rest < HEAD - 2 * HALF)
        base = head * HEAD + 2 * HALF + rest
        value = tl.load(in_ptr + token * in_stride + base, mask=kept, other=0.0)
        tl.store(out_ptr + token * out_stride + base, value, mask=kept)


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    q_stride,
    k_stride,
    q_out_stride,
    k_out_stride,
    table_stride,
    q_heads,
    k_heads,
    SIGN: tl.constexpr,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    table = token * table_stride + column
    cos = tl.load(cos_ptr + table, mask=column < HALF, other=0.0).to(tl.float32)
    # The inverse rotation, by the negative angle, is the backward pass.
    sin = tl.load(sin_ptr + table, mask=column < HALF, other=0.0).to(tl.float32) * SIGN
    _rotate(
        q_ptr, q_out_ptr, q_stride, q_out_stride, token, q_heads, cos, sin,
        HEAD, HALF, BLOCK_Q, BLOCK_HALF, BLOCK_REST,
    )  # fmt: skip
    _rotate(
        k_ptr, k_out_ptr, k_stride, k_out_stride, token, k_heads, cos, sin,
        HEAD, HALF, BLOCK_K, BLOCK_HALF, BLOCK_REST,
    )  # fmt: skip


def rope_launch(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; heads of q and k must be contiguous, tokens may be strided."""
    tokens, q_heads, head = q.shape
    half = cos.shape[1] // 2
    rest = head - 2 * half
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens:
        _rope_kernel[(tokens,)](
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            q.stride(0),
            k.stride(0),
            q_out.stride(0),
            k_out.stride(0),
            cos.stride(0),
            q_heads,
            k.shape[1],
            SIGN=-1.0 if inverse else 1.0,
            HEAD=head,
            HALF=half,
            BLOCK_Q=triton.next_power_of_2(q_heads),
            BLOCK_K=triton.next_power_of_2(k.shape[1]),
            BLOCK_HALF=triton.next_power_of_2(half),
            BLOCK_REST=triton.next_power_of_2(rest) if rest else 0,
            num_warps=4,
        )
    return q_out, k_out


class RopeFunction(torch.autograd.Function):
    """The rotation is orthogonal: its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotated q and k."""
        ctx.save_for_backward(cos, sin)
        return rope_launch(q, k, cos, sin, inverse=False)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> Any:
        """Return the gradients of q and k."""
        cos, sin = ctx.saved_tensors
        return *rope_launch(_heads(dq), _heads(dk), cos, sin, inverse=True), None, None


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions, in the half-split layout.

    Equivalent to `rope_ref(q, cos, sin), rope_ref(k, cos, sin)`. The table has one row a token, so
    positions may restart anywhere in a packed row. Where P is below H, the rest passes unchanged.

    Args:
        q: [T, N, H].
        k: [T, K, H], same dtype.
        cos: [T, P], both halves alike, P even, from 2 to H, same dtype.
        sin: as `cos`.

    Returns:
        The rotated q and k, contiguous.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    heads_fit = q.ndim == k.ndim == 3 and q.shape[::2] == k.shape[::2]
    if not heads_fit or k.dtype != q.dtype:
        raise ValueError(f"q is {tuple(q.shape)} {q.dtype}, k is {tuple(k.shape)} {k.dtype}")
    tokens, _, head = q.shape
    table_fits = cos.ndim == 2 and cos.shape[0] == tokens and cos.shape[1] in range(2, head + 1, 2)
    if not table_fits or sin.shape != cos.shape or not cos.dtype == sin.dtype == q.dtype:
        raise ValueError(
            f"cos is {tuple(cos.shape)} {cos.dtype}, sin is {tuple(sin.shape)} {sin.dtype}, "
            f"q is {tuple(q.shape)} {q.dtype}"
        )
    if not q.is_cuda:
        return rope_ref(q, cos, sin), rope_ref(k, cos, sin)
    rotated: tuple[Tensor, Tensor] = RopeFunction.apply(_heads(q), _heads(k), cos, sin)
    return rotated


def _heads(x: Tensor) -> Tensor:
    """Return x with contiguous heads; a slice of a fused projection already has them."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
