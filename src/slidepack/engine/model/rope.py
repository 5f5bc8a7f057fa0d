"""Cosine and sine tables of the rotary embedding, with Llama 3's long-context scaling."""

import math

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape, RopeShape


def rope_tables(shape: ModelShape, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each [T, head size], for positions [T] (int64).

    Angles are computed in fp32, as checkpoints were trained, then rounded to `dtype`.
    """
    frequencies = _inverse_frequencies(shape.rope, shape.head_dim).to(positions.device)
    angles = positions[:, None].to(torch.float32) * frequencies[None, :]
    both_halves = torch.cat((angles, angles), dim=-1)
    return both_halves.cos().to(dtype), both_halves.sin().to(dtype)


def _inverse_frequencies(rope: RopeShape, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return base
    # Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, and those between
    # are blended linearly in the number of turns over the original context.
    wavelengths = 2 * math.pi / base
    turns = rope.original_max_position / wavelengths
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return base / rope.factor * (1.0 - blend) + base * blend
