"""Launch sizes that several kernels share."""

from dataclasses import dataclass
from typing import Final

__all__ = ["LoraTileSizes", "elementwise_warps"]

_WIDE_BLOCK: Final = 16384


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTileSizes:
    """Sizes of the grouped LoRA kernels."""

    row_tile: int = 64
    """Tokens of a tile of shrink and expand."""
    shrink_columns: int = 64
    shrink_warps: int = 4
    split: int = 1024
    expand_columns: int = 128
    expand_span: int = 1024
    expand_stages: int = 3
    expand_warps: int = 4
    outer_tokens: int = 64
    outer_columns: int = 128
    outer_warps: int = 4
    stages: int = 3
    """Software pipeline depth of shrink and of the weight gradients."""


def elementwise_warps(block: int) -> int:
    """Return the warps of a program that holds one row of `block` elements."""
    if block >= _WIDE_BLOCK:
        return 16
    return 8 if block >= 2048 else 4
