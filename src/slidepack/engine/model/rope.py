"""Cosine and sine tables of the rotary embedding, with its long-context scalings."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape, RopeShape
from slidepack.kernels import upload

RopeTable = tuple[Tensor, Tensor]
"""cos and sin, each [T, head size]."""


@dataclass(frozen=True, slots=True)
class RopeTables:
    """The tables of a packed row: one for every layer, or one for each of the two kinds."""

    full: RopeTable
    sliding: RopeTable | None
    """Of the layers with a window, where they rotate in their own way."""

    def of_window(self, window: int | None) -> RopeTable:
        """Return the table of the layers with this window (None: without one)."""
        return self.full if window is None or self.sliding is None else self.sliding


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """Radians a position, fp32 [head size / 2], of a model."""

    full: Tensor
    sliding: Tensor | None

    @classmethod
    def of(cls, shape: ModelShape, device: torch.device) -> Self:
        """Return a model's frequencies on a device."""
        sliding = None
        if shape.sliding_rope is not None:
            sliding = upload(_inverse_frequencies(shape.sliding_rope, shape.head_dim), device)
        return cls(upload(_inverse_frequencies(shape.rope, shape.head_dim), device), sliding)


def rope_tables(
    shape: ModelShape,
    positions: Tensor,
    dtype: torch.dtype,
    frequencies: RopeFrequencies | None = None,
) -> RopeTables:
    """Return the tables for positions [T] (int64).

    Angles are computed in fp32, as checkpoints were trained, then rounded to `dtype`.

    Args:
        shape: of the model.
        positions: within each token's sequence.
        dtype: of the tables.
        frequencies: of the model, where they are on the device already.
    """
    if frequencies is None:
        frequencies = RopeFrequencies.of(shape, positions.device)
    sliding = None
    if frequencies.sliding is not None:
        sliding = _table(frequencies.sliding, positions, dtype)
    return RopeTables(_table(frequencies.full, positions, dtype), sliding)


def _table(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> RopeTable:
    angles = positions[:, None].to(torch.float32) * frequencies[None, :]
    both_halves = torch.cat((angles, angles), dim=-1)
    return both_halves.cos().to(dtype), both_halves.sin().to(dtype)


def _inverse_frequencies(rope: RopeShape, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return base
    if rope.kind == "linear":
        return base / rope.factor
    # Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, and those between
    # are blended linearly in the number of turns over the original context.
    wavelengths = 2 * math.pi / base
    turns = rope.original_max_position / wavelengths
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return base / rope.factor * (1.0 - blend) + base * blend
