"""4-bit NormalFloat (QLoRA, Dettmers et al., arXiv 2305.14314), in bitsandbytes' layout.

Two codes a byte, the first element in the high four bits; one fp32 scale (the largest magnitude)
for each block of 64 elements of the flattened tensor.
"""

import math
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import dequantise_nf4_ref
from slidepack.kernels.tiles import Nf4Tiles

__all__ = ["NF4_BLOCK", "dequantise_nf4", "dequantise_nf4_launch", "quantise_nf4"]

NF4_BLOCK: Final = 64
_SMALLEST_SCALE: Final = 1e-38
"""Keeps the reciprocal of an empty block's scale finite."""

_LEVELS: Final = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The quantiles of a normal distribution that the format's codes stand for (paper, appendix E)."""


@triton.jit
def _dequantise_nf4_kernel(
    packed_ptr, scale_ptr, out_ptr, elements,
    LEVELS: tl.constexpr, HALF: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    code = tl.arange(0, 16)
    levels = tl.zeros((16,), dtype=tl.float32)
    for i in tl.static_range(16):
        levels = tl.where(code == i, LEVELS[i], levels)
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    byte = block[:, None] * HALF + tl.arange(0, HALF)[None, :]
    packed = tl.load(packed_ptr + byte, mask=byte * 2 < elements, other=0).to(tl.int32)
    scale = tl.load(scale_ptr + block, mask=block * (HALF * 2) < elements, other=0.0)[:, None]
    # A look-up in registers: the table is never read from memory.
    flat = tl.reshape(packed, (BLOCKS * HALF,))
    high = tl.reshape(tl.gather(levels, flat >> 4, 0), (BLOCKS, HALF)) * scale
    low = tl.reshape(tl.gather(levels, flat & 15, 0), (BLOCKS, HALF)) * scale
    # Neighbours in memory, so that a thread writes both of a byte's elements at once.
    both = tl.interleave(high, low)
    element = block[:, None] * (HALF * 2) + tl.arange(0, HALF * 2)[None, :]
    tl.store(out_ptr + element, both, mask=element < elements)


def nf4_levels(device: torch.device) -> Tensor:
    """Return the 16 levels, fp32."""
    return torch.tensor(_LEVELS, dtype=torch.float32, device=device)


def quantise_nf4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a tensor, on whatever device it is.

    Each element, times the fp32 reciprocal of its block's scale, takes the nearest level; half-way
    cases take the lower one.

    Args:
        values: any shape and float dtype, an even number of elements.

    Returns:
        Packed codes [n / 2] uint8 and scales [ceil(n / 64)] fp32.

    Raises:
        ValueError: an odd number of elements, or integers.
    """
    if not values.is_floating_point():
        raise ValueError(f"values are {values.dtype}, not floating point")
    flat = values.detach().reshape(-1).to(torch.float32)
    count = flat.numel()
    if count % 2:
        raise ValueError(f"{count} elements cannot be packed in pairs")
    blocks = torch.nn.functional.pad(flat, (0, -count % NF4_BLOCK)).view(-1, NF4_BLOCK)
    scales = blocks.abs().amax(dim=1)
    # The format's own rule: the reciprocal is rounded first, as bitsandbytes does.
    normed = blocks * (1.0 / scales.clamp_min(_SMALLEST_SCALE))[:, None]
    levels = nf4_levels(flat.device)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(normed, borders).to(torch.uint8).view(-1)[:count]
    return (codes[0::2] << 4) | codes[1::2], scales


def dequantise_nf4_launch(
    packed: Tensor, scales: Tensor, out: Tensor, *, tiles: Nf4Tiles | None = None
) -> None:
    """Launch the kernel over a flat, contiguous output; `tiles` stand in for the device's own."""
    elements = out.numel()
    tiles = Nf4Tiles.of(out.device) if tiles is None else tiles
    if elements:
        _dequantise_nf4_kernel[(triton.cdiv(elements, NF4_BLOCK * tiles.blocks),)](
            packed,
            scales,
            out,
            elements,
            LEVELS=_LEVELS,
            HALF=NF4_BLOCK // 2,
            BLOCKS=tiles.blocks,
            num_warps=tiles.warps,
        )


def dequantise_nf4(
    packed: Tensor,
    scales: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the tensor that codes and scales stand for.

    Args:
        packed: [n / 2] uint8.
        scales: [ceil(n / 64)] fp32.
        shape: of the result, n elements.
        dtype: of the result, bf16 in training.
        out: contiguous, of this shape and dtype, to be written and returned.

    Raises:
        ValueError: sizes or dtypes do not fit.
    """
    elements = math.prod(shape)
    if packed.dtype != torch.uint8 or packed.numel() * 2 != elements:
        raise ValueError(
            f"packed is {tuple(packed.shape)} {packed.dtype}, the result is {tuple(shape)}"
        )
    if scales.dtype != torch.float32 or scales.numel() != -(-elements // NF4_BLOCK):
        raise ValueError(f"scales are {tuple(scales.shape)} {scales.dtype} for {elements} elements")
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=packed.device)
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or not out.is_contiguous():
        raise ValueError(
            f"out is {tuple(out.shape)} {out.dtype} with strides {out.stride()}, the result is "
            f"{tuple(shape)} {dtype}"
        )
    if not packed.is_cuda:
        levels = nf4_levels(packed.device)
        wide = dequantise_nf4_ref(packed, scales, levels, NF4_BLOCK)
        return out.copy_(wide.view(shape))
    dequantise_nf4_launch(packed, scales, out)
    return out
