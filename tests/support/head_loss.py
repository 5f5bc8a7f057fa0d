"""The loss of a linear head in plain torch: the judge of `linear_cross_entropy`."""

import torch
from torch import Tensor

from slidepack.kernels.linear_cross_entropy import IGNORED


def torch_head_loss(
    hidden_SD: Tensor,
    head_VD: Tensor,
    labels_S: Tensor,
    weights_S: Tensor | None,
    soft_cap: float | None,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Return losses, hidden gradient and head gradient, computed in `dtype`, given as fp64."""
    x = hidden_SD.detach().to(dtype, copy=True).requires_grad_()
    w = head_VD.detach().to(dtype, copy=True).requires_grad_()
    wide = (x @ w.T).to(torch.promote_types(dtype, torch.float32))
    if soft_cap is not None:
        wide = soft_cap * torch.tanh(wide / soft_cap)
    losses = torch.nn.functional.cross_entropy(
        wide, labels_S, reduction="none", ignore_index=IGNORED
    )
    if weights_S is not None:
        losses = losses * weights_S.to(wide.dtype)
    losses.sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [losses.detach().double(), x.grad.double(), w.grad.double()]
