"""The order of q's and k's rows: Hugging Face's halves, llama.cpp's neighbours."""

from torch import Tensor

__all__ = ["permuted", "unpermuted"]


def permuted(rows: Tensor, head_dim: int) -> Tensor:
    """Put rotary partners side by side: rows i and i + half of a head become neighbours.

    Args:
        rows: [heads * head_dim, in].
        head_dim: rows in a head.
    """
    width = rows.shape[-1]
    return rows.view(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(-1, width)


def unpermuted(rows: Tensor, head_dim: int) -> Tensor:
    """Undo `permuted`."""
    width = rows.shape[-1]
    return rows.view(-1, head_dim // 2, 2, width).transpose(1, 2).reshape(-1, width)
