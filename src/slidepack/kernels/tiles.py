"""Launch sizes that several kernels share."""

from typing import Final

__all__ = ["elementwise_warps"]

_WIDE_BLOCK: Final = 16384


def elementwise_warps(block: int) -> int:
    """Return the warps of a program that holds one row of `block` elements."""
    if block >= _WIDE_BLOCK:
        return 16
    return 8 if block >= 2048 else 4
