"""Gated activations: SwiGLU and GeGLU (Shazeer, arXiv 2002.05202), fused.

Shapes: `T` tokens, `F` width.
"""

from typing import Any, Final, Literal, get_args

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import geglu_ref, swiglu_ref

__all__ = ["Activation", "GatedFunction", "gated", "gated_bwd", "gated_fwd"]

Activation = Literal["silu", "gelu_tanh"]

_BLOCK: Final = 2048
_GELU_SCALE: Final = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
_GELU_CUBIC: Final = tl.constexpr(0.044715)


@triton.jit
def _tanh(x):
    # By exp, which every target has; saturates instead of overflowing.
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def _gated_fwd_kernel(
    gate_ptr, up_ptr, y_ptr, gate_stride, up_stride, width,
    GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        inner = _GELU_SCALE * (gate + _GELU_CUBIC * gate * gate * gate)
        active = 0.5 * gate * (1.0 + _tanh(inner))
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(y_ptr + row * width + columns, active * up, mask=inside)


@triton.jit
def _gated_bwd_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, gate_stride, up_stride, out_stride, width,
    GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    dy = tl.load(dy_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        inner = _GELU_SCALE * (gate + _GELU_CUBIC * gate * gate * gate)
        t = _tanh(inner)
        active = 0.5 * gate * (1.0 + t)
        slope = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * gate * gate)
        derivative = 0.5 * (1.0 + t) + 0.5 * gate * (1.0 - t * t) * slope
    else:
        s = tl.sigmoid(gate)
        active = gate * s
        derivative = s * (1.0 + gate * (1.0 - s))
    tl.store(dgate_ptr + row * out_stride + columns, dy * up * derivative, mask=inside)
    tl.store(dup_ptr + row * out_stride + columns, dy * active, mask=inside)


def gated_fwd(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Launch the forward kernel; columns must be contiguous, rows may be strided."""
    tokens, width = gate.shape
    y = torch.empty((tokens, width), dtype=gate.dtype, device=gate.device)
    if y.numel():
        _gated_fwd_kernel[(tokens, triton.cdiv(width, _BLOCK))](
            gate,
            up,
            y,
            gate.stride(0),
            up.stride(0),
            width,
            GELU=activation == "gelu_tanh",
            BLOCK=_BLOCK,
            num_warps=8,
        )
    return y


def gated_bwd(
    dy: Tensor, gate: Tensor, up: Tensor, activation: Activation
) -> tuple[Tensor, Tensor]:
    """Launch the backward kernel; both gradients are halves of one [T, 2F] tensor.

    So the backward product of a fused gate-and-up projection reads them as they are.
    """
    tokens, width = gate.shape
    both = torch.empty((tokens, 2 * width), dtype=gate.dtype, device=gate.device)
    dgate, dup = both[:, :width], both[:, width:]
    if dy.numel():
        _gated_bwd_kernel[(tokens, triton.cdiv(width, _BLOCK))](
            dy,
            gate,
            up,
            dgate,
            dup,
            gate.stride(0),
            up.stride(0),
            both.stride(0),
            width,
            GELU=activation == "gelu_tanh",
            BLOCK=_BLOCK,
            num_warps=8,
        )
    return dgate, dup


class GatedFunction(torch.autograd.Function):
    """Saves gate and up; the activation is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        """Return activation(gate) · up."""
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return gated_fwd(gate, up, activation)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of gate and up."""
        gate, up = ctx.saved_tensors
        return *gated_bwd(dy.contiguous(), gate, up, ctx.activation), None


def gated(gate: Tensor, up: Tensor, activation: Activation = "silu") -> Tensor:
    """Gated activation: `silu(gate) * up`, or `gelu_tanh(gate) * up`.

    Equivalent to `F.silu(gate) * up` and `F.gelu(gate, approximate="tanh") * up`, in fp32 inside.

    Args:
        gate: [T, F], any float dtype; may be a slice of a wider tensor.
        up: as `gate`.
        activation: which one.

    Returns:
        [T, F].

    Raises:
        ValueError: shapes or dtypes differ, or there is no such activation.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.ndim != 2:
        raise ValueError(
            f"gate is {tuple(gate.shape)} {gate.dtype}, up is {tuple(up.shape)} {up.dtype}"
        )
    if activation not in get_args(Activation):
        raise ValueError(f"activation is {activation!r}, not one of {get_args(Activation)}")
    if not gate.is_cuda:
        return swiglu_ref(gate, up) if activation == "silu" else geglu_ref(gate, up)
    y: Tensor = GatedFunction.apply(_rows(gate), _rows(up), activation)
    return y


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
