"""Norm, rotary embedding, gated activations and 4-bit weights: bound by memory bandwidth."""

from typing import Final

import torch
from torch import Tensor

from slidepack.engine.bench_kernels import liger
from slidepack.engine.bench_kernels.operation import Operation, Pass, Setting, operation
from slidepack.kernels import add_rms_norm, dequantise_nf4, gated, quantise_nf4, rms_norm, rope
from slidepack.kernels.nf4 import NF4_BLOCK, nf4_levels
from slidepack.kernels.reference import (
    dequantise_nf4_ref,
    geglu_ref,
    rms_norm_ref,
    rope_ref,
    swiglu_ref,
)

__all__ = ["ELEMENTWISE"]

_EPS: Final = 1e-5
_ROPE_THETA: Final = 500000.0


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, _EPS)


def _rms_norm_eager(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm_ref(x, weight, _EPS)


def _rms_norm_torch(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, _EPS)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, residual, weight, _EPS)


def _add_rms_norm_eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm_eager(total, weight), total


def _add_rms_norm_torch(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm_torch(total, weight), total


def _rope_eager(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rope_ref(q, cos, sin), rope_ref(k, cos, sin)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, "silu")


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, "gelu_tanh")


def _hidden_bytes(setting: Setting) -> int:
    return setting.sizes.tokens * setting.sizes.width * setting.dtype.itemsize


def rms_norm_forward(setting: Setting) -> Operation:
    """Norm of a layer's input."""
    sizes = setting.sizes
    return operation(
        "rms_norm forward",
        2 * _hidden_bytes(setting),
        (setting.random(sizes.tokens, sizes.width, grad=True), setting.random(sizes.width)),
        ours=_rms_norm,
        eager=_rms_norm_eager,
        torch_fused=_rms_norm_torch,
        liger=liger.rms_norm,
    )


def _rms_norm_backward(setting: Setting, name: str, *, weight_grad: bool) -> Operation:
    sizes = setting.sizes
    return operation(
        name,
        3 * _hidden_bytes(setting),
        (
            setting.random(sizes.tokens, sizes.width, grad=True),
            setting.random(sizes.width, grad=weight_grad),
        ),
        ours=_rms_norm,
        eager=_rms_norm_eager,
        torch_fused=_rms_norm_torch,
        liger=liger.rms_norm,
        grad=setting.random(sizes.tokens, sizes.width),
    )


def rms_norm_backward_frozen(setting: Setting) -> Operation:
    """Backward of the norm where its weight is frozen, as in LoRA."""
    return _rms_norm_backward(setting, "rms_norm backward, frozen weight", weight_grad=False)


def rms_norm_backward(setting: Setting) -> Operation:
    """Backward of the norm with its weight's gradient."""
    return _rms_norm_backward(setting, "rms_norm backward", weight_grad=True)


def add_rms_norm_forward(setting: Setting) -> Operation:
    """Residual sum and norm in one pass."""
    sizes = setting.sizes
    return operation(
        "add_rms_norm forward",
        4 * _hidden_bytes(setting),
        (
            setting.random(sizes.tokens, sizes.width, grad=True),
            setting.random(sizes.tokens, sizes.width, grad=True),
            setting.random(sizes.width),
        ),
        ours=_add_rms_norm,
        eager=_add_rms_norm_eager,
        torch_fused=_add_rms_norm_torch,
        liger=liger.add_rms_norm,
    )


def rope_forward(setting: Setting) -> Operation:
    """Rotation of queries and keys."""
    sizes = setting.sizes
    half = torch.arange(0, sizes.head, 2, device=setting.device) / sizes.head
    positions = torch.arange(sizes.tokens, device=setting.device)
    angles = (positions[:, None] * _ROPE_THETA**-half).repeat(1, 2)
    q = setting.random(sizes.tokens, sizes.heads, sizes.head, grad=True)
    k = setting.random(sizes.tokens, sizes.kv_heads, sizes.head, grad=True)
    # Both halves of a row of the table are alike, so one of them must be read.
    tables = sizes.tokens * sizes.head * setting.dtype.itemsize
    return operation(
        "rope, q and k",
        2 * (q.nbytes + k.nbytes) + tables,
        (q, k, angles.cos().to(setting.dtype), angles.sin().to(setting.dtype)),
        ours=rope,
        eager=_rope_eager,
        liger=liger.rope,
    )


def _ffn(setting: Setting, *, grad: bool) -> Tensor:
    return setting.random(setting.sizes.tokens, setting.sizes.ffn, grad=grad)


def swiglu_forward(setting: Setting) -> Operation:
    """The gated activation of Llama."""
    gate, up = _ffn(setting, grad=True), _ffn(setting, grad=True)
    return operation(
        "swiglu forward",
        3 * gate.nbytes,
        (gate, up),
        ours=_swiglu,
        eager=swiglu_ref,
        liger=liger.swiglu,
    )


def swiglu_backward(setting: Setting) -> Operation:
    """Its backward pass."""
    gate, up = _ffn(setting, grad=True), _ffn(setting, grad=True)
    return operation(
        "swiglu backward",
        5 * gate.nbytes,
        (gate, up),
        ours=_swiglu,
        eager=swiglu_ref,
        liger=liger.swiglu,
        grad=_ffn(setting, grad=False),
    )


def geglu_forward(setting: Setting) -> Operation:
    """The gated activation of Gemma."""
    gate, up = _ffn(setting, grad=True), _ffn(setting, grad=True)
    return operation(
        "geglu forward",
        3 * gate.nbytes,
        (gate, up),
        ours=_geglu,
        eager=geglu_ref,
        liger=liger.geglu,
    )


def geglu_backward(setting: Setting) -> Operation:
    """Its backward pass."""
    gate, up = _ffn(setting, grad=True), _ffn(setting, grad=True)
    return operation(
        "geglu backward",
        5 * gate.nbytes,
        (gate, up),
        ours=_geglu,
        eager=geglu_ref,
        liger=liger.geglu,
        grad=_ffn(setting, grad=False),
    )


def nf4_dequantise(setting: Setting) -> Operation:
    """One frozen weight of a quantised base."""
    shape, dtype = (setting.sizes.ffn, setting.sizes.width), setting.dtype
    packed, scales = quantise_nf4(setting.random(*shape))

    def ours(packed: Tensor, scales: Tensor) -> Tensor:
        return dequantise_nf4(packed, scales, shape, dtype)

    def eager(packed: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
        return dequantise_nf4_ref(packed, scales, levels, NF4_BLOCK).view(shape).to(dtype)

    return Operation(
        name="nf4 dequantise",
        amount=shape[0] * shape[1] * dtype.itemsize + packed.nbytes + scales.nbytes,
        ours=Pass(function=ours, inputs=(packed, scales)),
        eager=Pass(function=eager, inputs=(packed, scales, nf4_levels(setting.device))),
    )


ELEMENTWISE: Final = (
    rms_norm_forward,
    rms_norm_backward_frozen,
    rms_norm_backward,
    add_rms_norm_forward,
    rope_forward,
    swiglu_forward,
    swiglu_backward,
    geglu_forward,
    geglu_backward,
    nf4_dequantise,
)
"""Builders, in the order of the table; each makes its own tensors."""
