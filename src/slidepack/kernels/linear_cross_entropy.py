"""Linear head + cross entropy in chunks: loss and hidden gradient without [T, V] logits.

Shapes: `S` supervised tokens, `D` model width, `V` vocabulary.
"""

from typing import Final

import torch
from torch import Tensor

__all__ = ["linear_cross_entropy"]

_CHUNK_ELEMENTS: Final = 1 << 25
"""Logits held at once: 128 MiB in fp32, small beside any head and large enough to fill a core."""


@torch.no_grad()
def linear_cross_entropy(
    hidden_SD: Tensor, head_VD: Tensor, labels_S: Tensor, *, backward: bool
) -> tuple[Tensor, Tensor | None]:
    """Per-token cross entropy of a frozen head, and the gradient of its sum.

    Equivalent to `F.cross_entropy(hidden @ head.T, labels, reduction="none")` in fp32, given only
    the tokens that count: ignored ones are dropped by the caller, so they cost no matrix product.

    Args:
        hidden_SD: [S, D] of the supervised positions.
        head_VD: [V, D], same dtype; no gradient is computed for it.
        labels_S: [S] int64, each in 0..V-1.
        backward: whether the gradient is wanted.

    Returns:
        Losses [S] in fp32 (fp64 for fp64 input), and d(sum of losses)/d(hidden) [S, D] in the
        dtype of `hidden_SD`, or None.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    num_tokens, width = hidden_SD.shape
    vocab = head_VD.shape[0]
    if head_VD.shape[1] != width or head_VD.dtype != hidden_SD.dtype:
        raise ValueError(
            f"head is {tuple(head_VD.shape)} {head_VD.dtype}, "
            f"hidden is {tuple(hidden_SD.shape)} {hidden_SD.dtype}"
        )
    if labels_S.shape != (num_tokens,) or labels_S.dtype != torch.int64:
        raise ValueError(
            f"labels are {tuple(labels_S.shape)} {labels_S.dtype}, not ({num_tokens},) int64"
        )
    wide = torch.promote_types(hidden_SD.dtype, torch.float32)
    losses = torch.empty(num_tokens, dtype=wide, device=hidden_SD.device)
    grad = torch.empty_like(hidden_SD) if backward else None
    chunk = max(1, _CHUNK_ELEMENTS // vocab)
    for start in range(0, num_tokens, chunk):
        part = slice(start, min(start + chunk, num_tokens))
        logits = torch.nn.functional.linear(hidden_SD[part], head_VD).to(wide)
        labels = labels_S[part, None]
        log_sum = torch.logsumexp(logits, dim=-1)
        losses[part] = log_sum - logits.gather(1, labels)[:, 0]
        if grad is not None:
            probabilities = logits.sub_(log_sum[:, None]).exp_()
            probabilities.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=wide))
            grad[part] = probabilities.to(head_VD.dtype) @ head_VD
    return losses, grad
