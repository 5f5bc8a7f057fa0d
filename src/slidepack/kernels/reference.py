"""Plain PyTorch forms of the operations: the CPU path, and the judge of every fused kernel.

Shapes: `T` packed tokens, `D` model width, `F` feed-forward width, `N` heads, `H` head size,
`R` LoRA rank.
"""

import torch
from torch import Tensor

__all__ = [
    "adamw_ref",
    "cross_entropy_ref",
    "dequantise_nf4_ref",
    "geglu_ref",
    "lora_ref",
    "rms_norm_ref",
    "rope_ref",
    "swiglu_ref",
]


def rms_norm_ref(x_TD: Tensor, weight_D: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """Root-mean-square norm (Zhang & Sennrich, arXiv 1910.07467), statistics in fp32 or better.

    Args:
        x_TD: [..., D], any float dtype.
        weight_D: [D].
        eps: added to the mean square.
        plus_one: scale by 1 + weight, as Gemma does.

    Returns:
        [..., D] in the dtype of `x_TD`.
    """
    wide = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (1.0 + weight_D if plus_one else weight_D) * (wide * scale).to(x_TD.dtype)


def rope_ref(x_TNH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Rotary embedding (arXiv 2104.09864) in the half-split layout of Llama checkpoints.

    Args:
        x_TNH: [T, N, H] queries or keys.
        cos_TH: [T, P], both halves alike, in the dtype of `x_TNH`; where P is below H, only the
            first P of each head are rotated.
        sin_TH: as `cos_TH`.

    Returns:
        [T, N, H].
    """
    part = cos_TH.shape[-1]
    if part < x_TNH.shape[-1]:
        turned = rope_ref(x_TNH[..., :part], cos_TH, sin_TH)
        return torch.cat((turned, x_TNH[..., part:]), dim=-1)
    first, second = x_TNH.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x_TNH * cos_TH[:, None, :] + rotated * sin_TH[:, None, :]


def swiglu_ref(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """silu(gate) · up (Shazeer, arXiv 2002.05202); all [..., F]."""
    return torch.nn.functional.silu(gate_TF) * up_TF


def geglu_ref(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """gelu(gate) · up (arXiv 2002.05202), gelu by its tanh form; all [..., F]."""
    return torch.nn.functional.gelu(gate_TF, approximate="tanh") * up_TF


def cross_entropy_ref(
    logits_SV: Tensor, labels_S: Tensor, weights_S: Tensor, soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Weighted cross entropy of logits and the gradient of its sum.

    Args:
        logits_SV: [S, V], any float dtype.
        labels_S: [S] int64, each in 0..V-1.
        weights_S: [S] fp32 or better.
        soft_cap: bound of the logits (Gemma 2), or None.

    Returns:
        Losses [S] in fp32 or better, and the gradient [S, V] in the dtype of the logits.
    """
    wide = logits_SV.to(torch.promote_types(logits_SV.dtype, torch.float32))
    capped = wide if soft_cap is None else soft_cap * torch.tanh(wide / soft_cap)
    log_sum = torch.logsumexp(capped, dim=-1)
    losses = weights_S * (log_sum - capped.gather(1, labels_S[:, None])[:, 0])
    gradient = (capped - log_sum[:, None]).exp()
    gradient.scatter_add_(
        1, labels_S[:, None], torch.full_like(labels_S[:, None], -1, dtype=wide.dtype)
    )
    if soft_cap is not None:
        gradient *= 1.0 - (capped / soft_cap).square()
    return losses, (gradient * weights_S[:, None]).to(logits_SV.dtype)


def dequantise_nf4_ref(packed: Tensor, scales: Tensor, levels: Tensor, block: int) -> Tensor:
    """Return the fp32 values of packed 4-bit codes: levels[code] · scale of its block.

    Args:
        packed: [n / 2] uint8, the first element of a pair in the high four bits.
        scales: [ceil(n / block)] fp32.
        levels: [16] fp32.
        block: elements that share a scale.
    """
    codes = torch.stack((packed >> 4, packed & 15), dim=1).view(-1).long()
    return levels[codes] * scales.repeat_interleave(block)[: codes.numel()]


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
