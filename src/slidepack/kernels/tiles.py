"""Sizes of programs: a small table by device class, filled by measurement, never tuned in a run."""

import functools
import importlib.resources
import tomllib
from dataclasses import dataclass
from typing import Any, Final, Self

import torch

__all__ = [
    "LoraTiles",
    "Nf4Tiles",
    "RmsNormBackwardTiles",
    "device_class",
    "elementwise_warps",
    "multiprocessors",
    "read_tile_table",
]

_DEFAULT: Final = "default"
_TABLE: Final = "tile_table.toml"
_WIDE_BLOCK: Final = 16384


@dataclass(frozen=True, kw_only=True, slots=True)
class RmsNormBackwardTiles:
    """Programs of the norm's backward pass that sums weight gradients."""

    programs_per_multiprocessor: int
    """Each walks rows of its own and writes one partial sum."""
    warps: int
    stages: int
    """Rows that are loaded ahead."""

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Return the sizes for a device."""
        return cls(**_row(device_class(device), "rms_norm_backward"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Nf4Tiles:
    """Programs of the 4-bit look-up."""

    blocks: int
    """Blocks of 64 elements of one program."""
    warps: int

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Return the sizes for a device."""
        return cls(**_row(device_class(device), "nf4"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTiles:
    """Programs of the grouped LoRA kernels."""

    row_tile: int
    """Tokens of a tile of shrink and expand."""
    shrink_columns: int
    """Wide columns of one product."""
    shrink_warps: int
    shrink_stages: int
    expand_columns: int
    expand_span: int
    """Wide columns that one program walks over."""
    expand_warps: int
    expand_stages: int
    outer_tokens: int
    """Tokens of one product of a weight gradient."""
    outer_columns: int
    outer_warps: int
    outer_stages: int

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Return the sizes for a device."""
        return cls(**_row(device_class(device), "lora"))


def device_class(device: torch.device) -> str:
    """Return `sm_90`, `gfx1100` and the like: cards that share an instruction set and memory sizes.

    A CPU, where kernels are interpreted, is of the default class.
    """
    if device.type != "cuda":
        return _DEFAULT
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors (compute units) a device has; 1 where it is no GPU."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def read_tile_table() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the table: device class, operation, then sizes and `measured`."""
    text = importlib.resources.files("slidepack.kernels").joinpath(_TABLE).read_text("utf-8")
    return tomllib.loads(text)


def _row(name: str, operation: str) -> dict[str, int]:
    table = read_tile_table()
    row = table.get(name, {}).get(operation) or table[_DEFAULT][operation]
    return {key: value for key, value in row.items() if key != "measured"}


def elementwise_warps(block: int) -> int:
    """Return the warps of a program that holds one row of `block` elements."""
    if block >= _WIDE_BLOCK:
        return 16
    return 8 if block >= 2048 else 4
