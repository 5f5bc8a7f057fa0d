"""The optimizer's step and the norm it clips by: bound by memory bandwidth."""

from typing import Final

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from slidepack.engine.bench_kernels.operation import Operation, Pass, Setting, operation
from slidepack.kernels import (
    AdamWState,
    adamw,
    adamw_ref,
    adamw_scalars,
    join_master,
    split_master,
    squared_norm,
)
from slidepack.kernels.adamw import ADAMW_BLOCK

__all__ = ["OPTIMIZER"]

_LR: Final = 1e-4
_BETA1: Final = 0.9
_BETA2: Final = 0.999
_EPS: Final = 1e-8
_WEIGHT_DECAY: Final = 0.01


def _foreach(grad: Tensor, master: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    # Its step count stays on the host, where torch.optim.AdamW keeps it.
    _torch_step(grad, master, m, v, torch.zeros(()), fused=False)
    return master, m, v


def _fused(grad: Tensor, master: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    _torch_step(grad, master, m, v, torch.zeros((), device=grad.device), fused=True)
    return master, m, v


def _torch_step(
    grad: Tensor, master: Tensor, m: Tensor, v: Tensor, step: Tensor, *, fused: bool
) -> None:
    torch_adamw(
        [master],
        [grad.float()],
        [m],
        [v],
        [],
        [step],
        foreach=not fused,
        fused=fused,
        amsgrad=False,
        maximize=False,
        lr=_LR,
        beta1=_BETA1,
        beta2=_BETA2,
        eps=_EPS,
        weight_decay=_WEIGHT_DECAY,
    )


def _compilable(grad: Tensor, master: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    adamw_ref(
        master,
        grad.float(),
        m,
        v,
        step=1,
        lr=_LR,
        beta1=_BETA1,
        beta2=_BETA2,
        eps=_EPS,
        weight_decay=_WEIGHT_DECAY,
    )
    return master, m, v


def _scalars(device: torch.device) -> Tensor:
    step, clip = torch.tensor(1, device=device), torch.tensor(1.0, device=device)
    return adamw_scalars(step, clip, lr=_LR, beta1=_BETA1, beta2=_BETA2, weight_decay=_WEIGHT_DECAY)


def adamw_fp32(setting: Setting) -> Operation:
    """AdamW with all its state in fp32."""
    grad = setting.random(setting.sizes.params)
    zeros = torch.zeros(grad.shape, device=setting.device)
    scalars = _scalars(setting.device)

    def ours(grad: Tensor, master: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        state = AdamWState(master, None, m, v)
        adamw(grad, state, scalars, beta1=_BETA1, beta2=_BETA2, eps=_EPS)
        return master, m, v

    inputs = (grad, grad.float(), zeros, zeros)
    return Operation(
        name="adamw, fp32 state",
        amount=grad.nbytes + 6 * zeros.nbytes,
        ours=Pass(function=ours, inputs=inputs, overwrites=True),
        eager=Pass(function=_foreach, inputs=inputs, overwrites=True),
        compilable=Pass(function=_compilable, inputs=inputs, overwrites=True),
        torch_fused=Pass(function=_fused, inputs=inputs, overwrites=True),
    )


def adamw_8bit(setting: Setting) -> Operation:
    """AdamW with a split master and 8-bit moments."""
    count = setting.sizes.params
    grad = setting.random(count)
    plane, remainder = split_master(grad.float())

    def codes(low: int, high: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(
            low, high, (count,), generator=setting.generator, device=setting.device, dtype=dtype
        )

    m, v = codes(-127, 128, torch.int8), codes(0, 256, torch.uint8)
    scale = torch.full((count // ADAMW_BLOCK,), 0.5, device=setting.device)
    scalars = _scalars(setting.device)

    def ours(grad: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        adamw(grad, AdamWState(*state), scalars, beta1=_BETA1, beta2=_BETA2, eps=_EPS)
        return state

    inputs = (grad, plane, remainder, m, v, scale, scale)
    return Operation(
        name="adamw, split master, 8-bit state",
        amount=grad.nbytes + 2 * sum(x.nbytes for x in inputs[1:]),
        ours=Pass(function=ours, inputs=inputs, overwrites=True),
        eager=Pass(function=_adamw_8bit_eager, inputs=inputs, overwrites=True),
    )


def _adamw_8bit_eager(
    grad: Tensor,
    plane: Tensor,
    remainder: Tensor,
    m_codes: Tensor,
    v_codes: Tensor,
    m_scale: Tensor,
    v_scale: Tensor,
) -> tuple[Tensor, ...]:
    """Decode, step, encode; the formulas of `slidepack.kernels.adamw`."""
    blocks = (-1, ADAMW_BLOCK)
    codes = m_codes.view(blocks).float()
    m = codes * codes.abs() * (m_scale[:, None] / 127.0**2)
    v = (v_codes.view(blocks).float() / 255.0) ** 4 * v_scale[:, None]
    param = join_master(plane, remainder).view(blocks)
    adamw_ref(
        param,
        grad.view(blocks).float(),
        m,
        v,
        step=1,
        lr=_LR,
        beta1=_BETA1,
        beta2=_BETA2,
        eps=_EPS,
        weight_decay=_WEIGHT_DECAY,
    )
    m_scale.copy_(m.abs().amax(dim=1))
    v_scale.copy_(v.amax(dim=1))
    tiny = torch.finfo(torch.float32).tiny
    m_share = m.abs() / m_scale.clamp_min(tiny)[:, None]
    v_share = v / v_scale.clamp_min(tiny)[:, None]
    m_codes.view(blocks).copy_(torch.sign(m) * torch.floor(127.0 * m_share.sqrt() + 0.5))
    rounded = torch.floor(255.0 * v_share.sqrt().sqrt() + 0.5)
    v_codes.view(blocks).copy_(torch.where(v > 0.0, rounded.clamp_min(1.0), 0.0))
    new_plane, new_remainder = split_master(param.view(-1))
    plane.copy_(new_plane)
    remainder.copy_(new_remainder)
    return plane, remainder, m_codes, v_codes, m_scale, v_scale


def _squared_norm_eager(x: Tensor) -> Tensor:
    return x.float().square().sum()


def _squared_norm_torch(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float32)
    return norm.square()


def gradient_norm(setting: Setting) -> Operation:
    """The sum of squares that clipping needs."""
    x = setting.random(setting.sizes.params)
    return operation(
        "squared_norm",
        x.nbytes,
        (x,),
        ours=squared_norm,
        eager=_squared_norm_eager,
        torch_fused=_squared_norm_torch,
    )


OPTIMIZER: Final = (adamw_fp32, adamw_8bit, gradient_norm)
"""Builders, in the order of the table; each makes its own tensors."""
