"""The order of q's and k's rows: Hugging Face's halves, llama.cpp's neighbours."""

from torch import Tensor

from slidepack.engine.export.gguf_family import GgufFamily

__all__ = ["permuted", "stores_permuted", "unpermuted"]


def stores_permuted(name: str, family: GgufFamily) -> bool:
    """Return whether llama.cpp stores a weight's rows in its own order."""
    return family.permuted and name.endswith((".q_proj.weight", ".k_proj.weight"))


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
