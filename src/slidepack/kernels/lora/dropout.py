"""Dropout of the adapters' input by a counter-based generator.

Whether an element is kept depends on its adapter's seed, its sample, its position within the
sample, its feature, and the linear alone: not on the pack, the slot, or the tile. The generator is
Philox4x32-10, Triton's own in the kernels and `philox` in the plain form.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.lora.philox import philox
from slidepack.kernels.upload import upload

__all__ = ["LoraDropout", "drop", "dropout_tables", "keep_mask", "keep_tile"]

_COUNTERS: Final = 1 << 17
"""Counters, of four features each, that are worked on at once: 6 MB, about a core's cache."""
_KEPT_BYTES: Final = 8 << 20
"""Bits of masks that a row keeps: of 2,048 tokens, about a layer of a model that is 4,096 wide."""


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
    _kept: dict[tuple[int, ...], npt.NDArray[np.uint8]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Masks of the plain form, as bits, from the forward pass to the last use; oldest first."""


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


def drop(
    wide: Tensor,
    dropout: LoraDropout,
    adapter: int,
    rows: slice,
    site: int,
    *,
    last: bool = False,
) -> Tensor:
    """Return an adapter's rows of the wide side with zeros for what is dropped; the plain form.

    Args:
        wide: [rows, width].
        dropout: of the packed row.
        adapter: number of the adapter.
        rows: its tokens.
        site: number of the linear.
        last: nobody asks for the same mask after this.
    """
    if not int(dropout.thresholds[adapter]):
        return wide
    # Tensors that are filled anew in place make another mask.
    filled = (dropout.seeds, dropout.samples, dropout.positions)
    versions = (tensor._version for tensor in filled)
    key = (adapter, rows.start, rows.stop, site, wide.shape[1], *versions)
    bits = dropout._kept.pop(key, None)
    if bits is None:
        mask = keep_mask(dropout, adapter, rows, site, wide.shape[1])
        bits = None if last else np.packbits(mask.cpu().numpy())
    else:
        flat = np.unpackbits(bits, count=wide.numel()).view(np.bool_)
        mask = torch.from_numpy(flat).view(wide.shape).to(wide.device)
    if bits is not None and not last:
        dropout._kept[key] = bits
        while sum(kept.nbytes for kept in dropout._kept.values()) > _KEPT_BYTES:
            del dropout._kept[next(iter(dropout._kept))]
    return wide * mask


def keep_mask(dropout: LoraDropout, adapter: int, rows: slice, site: int, width: int) -> Tensor:
    """Return the boolean mask [rows, width] of an adapter's tokens; the plain form."""
    seed, threshold = int(dropout.seeds[adapter]), int(dropout.thresholds[adapter])
    positions, samples = (
        counters[rows].cpu().numpy().astype(np.uint64)
        for counters in (dropout.positions, dropout.samples)
    )
    blocks = np.arange(-(-width // 4), dtype=np.uint64)
    kept = np.empty((len(positions), width), dtype=np.bool_)

    def fill(stretch: slice) -> None:
        words = philox(seed, blocks, positions[stretch], samples[stretch], site)
        bits = words.reshape(len(words), 4 * len(blocks))[:, :width]
        np.greater_equal(bits, np.uint32(threshold), out=kept[stretch])

    step = max(1, _COUNTERS // max(1, len(blocks)))
    stretches = [slice(row, row + step) for row in range(0, len(kept), step)]
    threads = min(torch.get_num_threads(), len(stretches))
    if threads > 1:
        # NumPy's operations run without the interpreter's lock.
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, stretches))
    else:
        for stretch in stretches:
            fill(stretch)
    return torch.from_numpy(kept).to(dropout.samples.device)
