"""Packed rows of random tensors, and attention over them straight from its definition."""

import itertools

import torch
from torch import Tensor

from slidepack.kernels import Segments

__all__ = ["dense_attention", "normal", "qkv", "segments_of", "visible_in_row"]


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def qkv(
    tokens: int, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(tokens, heads, head_size, dtype=dtype),
        normal(tokens, kv_heads, head_size, seed=1, dtype=dtype),
        normal(tokens, kv_heads, head_size, seed=2, dtype=dtype),
    )


def segments_of(*lengths: int) -> Segments:
    bounds = tuple(itertools.accumulate(lengths, initial=0))
    return Segments(bounds=bounds, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


def visible_in_row(lengths: tuple[int, ...], window: int | None) -> Tensor:
    """Which key each query of the row sees, [T, T], straight from the words."""
    owner = [sequence for sequence, length in enumerate(lengths) for _ in range(length)]
    reach = sum(lengths) if window is None else window
    return torch.tensor(
        [
            [owner[q] == owner[k] and 0 <= q - k < reach for k in range(len(owner))]
            for q in range(len(owner))
        ]
    )


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    *,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Head by head, over the whole row at once."""
    group = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T
        scores = scores / q.shape[2] ** 0.5 if scale is None else scores * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        weights = torch.exp(scores) * visible
        heads.append((weights / weights.sum(dim=1, keepdim=True)) @ v[:, head // group])
    return torch.stack(heads, dim=1)
