"""Plain PyTorch forms of the operations: the CPU path, and the judge of every fused kernel.

Shapes: `T` packed tokens, `D` model width, `F` feed-forward width, `N` heads, `H` head size,
`R` LoRA rank.
"""

import torch
from torch import Tensor

__all__ = ["adamw_ref", "lora_ref", "rms_norm_ref", "rope_ref", "swiglu_ref"]


def rms_norm_ref(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (Zhang & Sennrich, arXiv 1910.07467), statistics in fp32 or better.

    Args:
        x_TD: [..., D], any float dtype.
        weight_D: [D].
        eps: added to the mean square.

    Returns:
        [..., D] in the dtype of `x_TD`.
    """
    wide = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight_D * (wide * scale).to(x_TD.dtype)


def rope_ref(x_TNH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Rotary embedding (arXiv 2104.09864) in the half-split layout of Llama checkpoints.

    Args:
        x_TNH: [T, N, H] queries or keys.
        cos_TH: [T, H], both halves alike, in the dtype of `x_TNH`.
        sin_TH: as `cos_TH`.

    Returns:
        [T, N, H].
    """
    first, second = x_TNH.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x_TNH * cos_TH[:, None, :] + rotated * sin_TH[:, None, :]


def swiglu_ref(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """silu(gate) · up (Shazeer, arXiv 2002.05202); all [..., F]."""
    return torch.nn.functional.silu(gate_TF) * up_TF


def lora_ref(x_TD: Tensor, a_RD: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """scale · B·A·x (Hu et al., arXiv 2106.09685).

    Args:
        x_TD: [T, D_in].
        a_RD: [R, D_in].
        b_OR: [D_out, R].
        scale: alpha / R, or alpha / sqrt(R).

    Returns:
        [T, D_out] in the dtype of `x_TD`.
    """
    shrunk = torch.nn.functional.linear(x_TD, a_RD.to(x_TD.dtype))
    return torch.nn.functional.linear(shrunk, b_OR.to(x_TD.dtype)) * scale


def adamw_ref(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """One AdamW step in place (arXiv 1711.05101), in the operation order of `torch.optim.AdamW`.

    Args:
        param: any shape, fp32 or fp64.
        grad: as `param`.
        exp_avg: first moment, as `param`.
        exp_avg_sq: second moment, as `param`.
        step: steps done including this one, from 1.
        lr: learning rate of this step.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times `lr`.
    """
    param.mul_(1.0 - lr * weight_decay)
    exp_avg.lerp_(grad, 1.0 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    denominator = (exp_avg_sq.sqrt() / (1.0 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-lr / (1.0 - beta1**step))
