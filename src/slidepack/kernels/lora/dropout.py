"""Dropout of the adapters' input by a counter-based generator.

Whether an element is kept depends on its adapter's seed, its sample, its position within the
sample, its feature, and the linear alone: not on the pack, the slot, or the tile. The generator is
Philox4x32-10 (Salmon et al., SC 2011), the same in Triton and in PyTorch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.upload import upload

__all__ = ["LoraDropout", "dropout_tables", "keep_mask", "keep_tile", "philox"]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_MASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class LoraDropout:
    """Dropout of one packed row."""

    seeds: Tensor
    """[N] int64, of each adapter in this step."""
    thresholds: Tensor
    """[N] int64: an element is kept where its 32 random bits are not below."""
    keep_scales: Tensor
    """[N] fp32: 1 / (1 - p)."""
    samples: Tensor
    """[T] int32: number of the sample within its adapter's step."""
    positions: Tensor
    """[T] int32: position within the sample."""


def dropout_tables(
    seeds: Sequence[int], rates: Sequence[float], samples: Tensor, positions: Tensor
) -> LoraDropout:
    """Bind the adapters' seeds and rates to the tokens of a packed row.

    Args:
        seeds: one an adapter, non-negative and below 2^63; another in every step.
        rates: probability that an element is dropped, in [0, 1).
        samples: [T] int32.
        positions: [T] int32.

    Raises:
        ValueError: a rate out of range.
    """
    if any(not 0.0 <= rate < 1.0 for rate in rates):
        raise ValueError(f"dropout rates {tuple(rates)} must be in [0, 1)")
    device = samples.device
    return LoraDropout(
        upload(torch.tensor(seeds, dtype=torch.int64), device),
        upload(torch.tensor([int(rate * 2**32) for rate in rates], dtype=torch.int64), device),
        upload(torch.tensor([1.0 / (1.0 - rate) for rate in rates]), device),
        samples,
        positions,
    )


@triton.jit
def keep_tile(
    seed, threshold, sample, position, site, first_feature, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Return a [ROWS, WIDTH] mask; `first_feature` is a multiple of 4."""
    block = first_feature // 4 + tl.arange(0, WIDTH // 4)
    zero = tl.zeros((ROWS, WIDTH // 4), dtype=tl.uint32)
    counter = zero + block[None, :].to(tl.uint32)
    where = zero + position[:, None].to(tl.uint32)
    which = zero + sample[:, None].to(tl.uint32)
    r0, r1, r2, r3 = tl.philox(seed, counter, where, which, zero + site.to(tl.uint32))
    bits = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
    return bits.to(tl.int64) >= threshold


def philox(seed: int, counters: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Return four words of 32 random bits for each counter, as int64.

    Args:
        seed: 64 bits of key.
        counters: four int64 tensors that broadcast, each element below 2^32.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counters)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        high_a, low_a = _product(_MULTIPLIERS[0], c0)
        high_b, low_b = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return [c0, c1, c2, c3]


def _product(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product, without leaving 63 bits."""
    low = (constant & 0xFFFF) * word
    high = (constant >> 16) * word + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def keep_mask(dropout: LoraDropout, adapter: int, rows: slice, site: int, width: int) -> Tensor:
    """Return the boolean mask [rows, width] of an adapter's tokens; the plain form."""
    if not int(dropout.thresholds[adapter]):
        # Nothing is below; the words would cost more than the products.
        count = dropout.samples[rows].numel()
        return torch.ones((count, width), dtype=torch.bool, device=dropout.samples.device)
    blocks = torch.arange(-(-width // 4), device=dropout.samples.device)
    words = philox(
        int(dropout.seeds[adapter]),
        (
            blocks[None, :],
            dropout.positions[rows].long()[:, None],
            dropout.samples[rows].long()[:, None],
            torch.tensor(site, device=blocks.device),
        ),
    )
    bits = torch.stack(words, dim=-1).flatten(1)[:, :width]
    return bits >= dropout.thresholds[adapter]
