"""Tile choices, one small table keyed by device class; a run reads it and never tunes.

The figures that chose each entry stand in `docs/benchmarks.md`.
"""

from typing import Final, Literal

import torch

__all__ = ["DeviceClass", "device_class", "elementwise_warps"]

DeviceClass = Literal["hopper", "ampere", "consumer", "hip", "cpu"]

_WIDE_BLOCK: Final = 8192


def device_class(device: torch.device) -> DeviceClass:
    """Return the class whose tiles a device takes.

    `hopper` has 228 KiB of shared memory a multiprocessor and up, `ampere` (A100) 164, `consumer`
    (RTX 30, 40 and 50) 100; `hip` is every AMD card.
    """
    if device.type != "cuda":
        return "cpu"
    if torch.version.hip is not None:
        return "hip"
    major, minor = torch.cuda.get_device_capability(device)
    if major in (9, 10):
        return "hopper"
    return "ampere" if (major, minor) == (8, 0) else "consumer"


def elementwise_warps(block: int) -> int:
    """Return the warps of a program that holds one row of `block` elements."""
    if block >= 2 * _WIDE_BLOCK:
        return 16
    return 8 if block >= 2048 else 4
