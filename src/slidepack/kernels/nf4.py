"""4-bit NormalFloat (QLoRA, Dettmers et al., arXiv 2305.14314), in bitsandbytes' layout.

Two codes a byte, the first element in the high four bits; one fp32 scale (the largest magnitude)
for each block of 64 elements of the flattened tensor.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import dequantise_nf4_ref

__all__ = ["NF4_BLOCK", "dequantise_nf4", "dequantise_nf4_launch", "quantise_nf4"]

NF4_BLOCK: Final = 64
_PROGRAM_BYTES: Final = 2048
"""Packed bytes of one program; a multiple of a block's 32."""

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
    packed_ptr, scale_ptr, levels_ptr, out_ptr, elements,
    BLOCK: tl.constexpr, PROGRAM: tl.constexpr,
):  # fmt: skip
    byte = tl.program_id(0).to(tl.int64) * PROGRAM + tl.arange(0, PROGRAM)
    packed = tl.load(packed_ptr + byte, mask=byte * 2 < elements, other=0).to(tl.int32)
    scale = tl.load(scale_ptr + byte * 2 // BLOCK, mask=byte * 2 < elements, other=0.0)
    high = tl.load(levels_ptr + (packed >> 4)) * scale
    low = tl.load(levels_ptr + (packed & 15)) * scale
    # Neighbours in memory, so that a thread writes both of a byte's elements at once.
    both = tl.interleave(high, low)
    element = tl.program_id(0).to(tl.int64) * PROGRAM * 2 + tl.arange(0, PROGRAM * 2)
    tl.store(out_ptr + element, both, mask=element < elements)


def nf4_levels(device: torch.device) -> Tensor:
    """Return the 16 levels, fp32."""
    return torch.tensor(_LEVELS, dtype=torch.float32, device=device)


def quantise_nf4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a tensor, on whatever device it is.

    Each element takes the nearest level of its block; half-way cases take the lower one.

    Args:
        values: any shape and float dtype, an even number of elements.

    Returns:
        Packed codes [n / 2] uint8 and scales [ceil(n / 64)] fp32.

    Raises:
        ValueError: an odd number of elements.
    """
    flat = values.detach().reshape(-1).to(torch.float32)
    count = flat.numel()
    if count % 2:
        raise ValueError(f"{count} elements cannot be packed in pairs")
    blocks = torch.nn.functional.pad(flat, (0, -count % NF4_BLOCK)).view(-1, NF4_BLOCK)
    scales = blocks.abs().amax(dim=1)
    normed = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
    levels = nf4_levels(flat.device)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(normed, borders).to(torch.uint8).view(-1)[:count]
    return (codes[0::2] << 4) | codes[1::2], scales


def dequantise_nf4_launch(packed: Tensor, scales: Tensor, out: Tensor) -> None:
    """Launch the kernel over a flat, contiguous output."""
    elements = out.numel()
    if elements:
        _dequantise_nf4_kernel[(triton.cdiv(packed.numel(), _PROGRAM_BYTES),)](
            packed,
            scales,
            nf4_levels(packed.device),
            out,
            elements,
            BLOCK=NF4_BLOCK,
            PROGRAM=_PROGRAM_BYTES,
            num_warps=8,
        )


def dequantise_nf4(
    packed: Tensor, scales: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Return the tensor that codes and scales stand for.

    Args:
        packed: [n / 2] uint8.
        scales: [ceil(n / 64)] fp32.
        shape: of the result, n elements.
        dtype: of the result, bf16 in training.

    Raises:
        ValueError: sizes or dtypes do not fit.
    """
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    if packed.dtype != torch.uint8 or packed.numel() * 2 != out.numel():
        raise ValueError(
            f"packed is {tuple(packed.shape)} {packed.dtype}, the result is {tuple(shape)}"
        )
    if scales.dtype != torch.float32 or scales.numel() != -(-out.numel() // NF4_BLOCK):
        raise ValueError(
            f"scales are {tuple(scales.shape)} {scales.dtype} for {out.numel()} elements"
        )
    if not packed.is_cuda:
        levels = nf4_levels(packed.device)
        return dequantise_nf4_ref(packed, scales, levels, NF4_BLOCK).view(shape).to(dtype)
    dequantise_nf4_launch(packed, scales, out)
    return out
