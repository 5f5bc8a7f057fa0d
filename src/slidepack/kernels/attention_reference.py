"""Attention of one sequence in plain PyTorch: the judge of every path, and the path of odd cases.

Shapes: `L` tokens of a sequence, `N` query heads, `K` key/value heads, `H` head size.
"""

import torch
from torch import Tensor

__all__ = ["attention_ref", "visible_ref"]


def visible_ref(tokens: int, window: int | None, device: torch.device) -> Tensor:
    """Return which key (column) each query (row) sees, bool [L, L].

    A token sees itself and what came before it; with a window, itself and the `window` - 1 tokens
    before it.
    """
    visible = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
    return visible if window is None else visible.triu(1 - window)


def attention_ref(
    q_LNH: Tensor,
    k_LKH: Tensor,
    v_LKH: Tensor,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Causal attention of one sequence; the softmax in fp32 or better.

    Args:
        q_LNH: [L, N, H], any float dtype.
        k_LKH: [L, K, H], K divides N: query head n reads key/value head n · K // N.
        v_LKH: as `k_LKH`.
        window: tokens that a token sees, itself among them; None is all before it.
        soft_cap: bound of the scores, soft_cap · tanh(scores / soft_cap) (Gemma 2), or None.
        scale: of the scores; None is 1 / sqrt(H).

    Returns:
        [L, N, H] in the dtype of `q_LNH`.
    """
    tokens, heads, head_size = q_LNH.shape
    group = heads // k_LKH.shape[1]
    q_NLH = q_LNH.transpose(0, 1)
    k_NLH, v_NLH = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k_LKH, v_LKH))
    scores = (q_NLH @ k_NLH.transpose(1, 2)).to(torch.promote_types(q_LNH.dtype, torch.float32))
    scores = scores * (head_size**-0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    hidden = ~visible_ref(tokens, window, q_LNH.device)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).to(q_LNH.dtype)
    return (weights @ v_NLH).transpose(0, 1)
