"""The 4-bit format bit for bit, against what bitsandbytes writes and reads.

The literals are the output of bitsandbytes 0.50.2 (its CPU build, with torch 2.13.0 on AVX-512) for
the inputs computed here: `quantize_4bit(x, blocksize=64, quant_type="nf4")` and `dequantize_4bit`.
The inputs take integers and single fp32 operations only: the same bits on every machine.

bitsandbytes multiplies a block by the fp32 reciprocal of its largest magnitude and compares with
the fp32 means of neighbouring levels; on a mean, the lower level wins. A block of zeros has scale 0
and codes 7. Its CPU build alone divides a partial last block, where the one below gives the same
codes both ways, and stores 1e-38 as the scale of a partial block of zeros, which is left out.
"""

import pytest
import torch
from torch import Tensor

from slidepack.kernels import dequantise_nf4, quantise_nf4

LEVELS = (
    "bf800000 bf3239b1 bf066b30 beca32a0 be91a24d be3d353f bdba7871 00000000 "
    "3da2faff 3e24cae3 3e7c04dd 3ead033a 3ee1a4b8 3f1007ab 3f3913b3 3f800000"
)
WRITTEN = {
    "bell": ("485bf9db76b429c51334db655362453ba9f29bd478586c3b75e6d64384c26c13", 3.1290283203125),
    "ties": ("00111222333444555666777888999aaabbbcccdddeeef0123456789abcdef770", 1.0),
    "zeros": ("7777777777777777777777777777777777777777777777777777777777777777", 0.0),
    "ties-of-61": ("01111223334445556666777788899aaaabbbcccddeeee03842dabd727754e556", 61.0),
    "part": ("4a7ceeee74c35ea12114eccfb633cb0386", 2.0059814453125),
}
"""Packed bytes and scale of each block."""
READ = {
    torch.float32: (
        "bf333333bef983f8bebc2fa9be8d89d6be4be338be047212bd82878200000000"
        "3d642c323de6b5a43e3069ce3e7237b73e9df34d3ec9a4563f018dca3f333333",
        "beaaaaabbe6da242be333996be06cc6bbdc22dbcbd7c46ffbcf8a09700000000"
        "3cd94eaa3d5bb92f3da8033e3de6aef83e166dd03e400a3a3e76c4ef3eaaaaab",
    ),
    torch.bfloat16: (
        "bf33befabebcbe8ebe4cbe04bd8300003d643de73e303e723e9e3eca3f023f33",
        "beabbe6ebe33be07bdc2bd7cbcf900003cd93d5c3da83de73e163e403e773eab",
    ),
    torch.float16: (
        "b99ab7ccb5e1b46cb25fb024ac1400002b212f363183339234f0364d380c399a",
        "b555b36db19ab036ae11abe2a7c5000026ca2ade2d402f3530b3320033b63555",
    ),
}
"""Values of the codes 0 to 15 at scale 0.7, and at scale 1/3."""


def _from_bits(text: str) -> Tensor:
    bits = [int.from_bytes(bytes.fromhex(word), signed=True) for word in text.split()]
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


def _to_bits(values: Tensor) -> str:
    return (
        values.contiguous().view(torch.uint8).view(len(values), -1).flip(1).numpy().tobytes().hex()
    )


def _bell(count: int, seed: int) -> Tensor:
    """Sums of four uniform numbers of a Lehmer generator, exact in fp32."""
    state, values = seed, []
    for _ in range(count):
        total = -(2**17)
        for _ in range(4):
            state = state * 48271 % (2**31 - 1)
            total += state >> 15
        values.append(total / 2**15)
    return torch.tensor(values)


def _borders(scale: float) -> Tensor:
    """The mean of each two levels, times the scale, between its fp32 neighbours."""
    levels = _from_bits(LEVELS)
    middle = (levels[1:] + levels[:-1]) / 2 * scale
    down, up = (torch.nextafter(middle, torch.tensor(end)) for end in (-99.0, 99.0))
    return torch.stack([down, middle, up], dim=1).flatten()


def _inputs() -> dict[str, Tensor]:
    return {
        "bell": _bell(64, seed=1),
        "ties": torch.cat([_borders(1.0), _from_bits(LEVELS), torch.tensor([-0.0, 0.0, -1.0])]),
        "zeros": torch.zeros(64),
        "ties-of-61": torch.cat([_borders(61.0), torch.tensor([-61.0]), _bell(18, seed=2) * 15]),
        "part": _bell(34, seed=3),
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_a_block_is_written_as_bitsandbytes_writes_it(name: str) -> None:
    packed, scales = quantise_nf4(_inputs()[name])
    expected, scale = WRITTEN[name]
    assert bytes(packed.tolist()).hex() == expected
    assert scales.tolist() == [scale]


def test_the_blocks_of_a_tensor_follow_one_another() -> None:
    inputs = _inputs()
    blocks = [quantise_nf4(block) for block in inputs.values()]
    packed, scales = quantise_nf4(torch.cat(list(inputs.values())).view(-1, 29))
    assert torch.equal(packed, torch.cat([block for block, _ in blocks]))
    assert torch.equal(scales, torch.cat([scale for _, scale in blocks]))


@pytest.mark.parametrize("dtype", READ, ids=str)
def test_codes_are_read_as_bitsandbytes_reads_them(dtype: torch.dtype) -> None:
    every_code = list(bytes.fromhex("0123456789abcdef"))
    packed = torch.tensor(every_code * 5, dtype=torch.uint8)
    scales = torch.tensor([0.7, 1.0 / 3.0])
    values = dequantise_nf4(packed, scales, (5, 16), dtype)
    first, second = READ[dtype]
    assert [_to_bits(row) for row in values] == [first] * 4 + [second]
