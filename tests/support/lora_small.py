"""Small cases of the grouped LoRA kernels: for the interpreter, and for a GPU in fp32."""

from dataclasses import replace

from slidepack.kernels.lora.tables import TOKEN_CHUNK
from slidepack.kernels.tiles import LoraTiles
from support.lora_cases import Lane, LoraCase

SMALL_TILES = LoraTiles(
    row_tile=16,
    shrink_columns=16,
    shrink_warps=4,
    shrink_stages=2,
    expand_columns=16,
    expand_span=32,
    expand_warps=4,
    expand_stages=1,
    outer_tokens=16,
    outer_columns=16,
    outer_warps=4,
    outer_stages=2,
)
"""For the interpreter, where a program takes two milliseconds whatever it does."""


def small_case(
    name: str,
    in_width: int,
    parts: tuple[int, ...],
    *lanes: tuple[tuple[int, ...], int],
    dropout: bool = False,
) -> LoraCase:
    """Return a case of lanes of some ranks and tokens; every third has no dropout."""
    rates = (0.3, 0.0, 0.5)
    return LoraCase(
        name=name,
        in_width=in_width,
        part_widths=parts,
        lanes=tuple(
            Lane(key=key, ranks=ranks, tokens=tokens, rate=rates[key % 3])
            for key, (ranks, tokens) in enumerate(lanes)
        ),
        dropout=dropout,
        sizes=SMALL_TILES,
    )


CASES = [
    small_case("odd", 21, (37,), ((1,), 5), ((3,), 0), ((24,), 17), ((16,), 1)),
    small_case("odd-dropout", 21, (37,), ((1,), 5), ((3,), 1), ((24,), 17), dropout=True),
    small_case("even", 48, (32, 16), ((8, 16), 33), ((16, 0), 1), ((8, 8), 0)),
    small_case(
        "even-dropout", 48, (32, 16), ((8, 16), 33), ((16, 0), 1), ((0, 8), 6), dropout=True
    ),
    # Even widths, behind an A that ends between multiples of 16.
    small_case("unaligned", 20, (32, 16), ((1, 2), 19), ((3, 0), 4), ((0, 1), 2)),
    small_case("large-ranks", 32, (20,), ((130,), 6), ((2,), 3), ((300,), 1)),
    small_case("large-ranks-dropout", 18, (16, 5), ((128, 3), 4), ((1, 200), 7), dropout=True),
    small_case("nobody-is-targeted", 16, (16, 16), ((0, 0), 3), ((0, 1), 2), ((0, 0), 0)),
    small_case("of-one", 1, (1, 1), ((1, 1), 1), ((0, 2), 3), dropout=True),
]
_WIDE_TILES = replace(
    SMALL_TILES, shrink_columns=512, expand_columns=512, expand_span=2048, outer_columns=512
)
WIDE = [
    replace(
        small_case(f"two-stretches-{in_width}", in_width, parts, ((3, 2), 5), ((1, 1), 2)),
        sizes=_WIDE_TILES,
    )
    for in_width, parts in ((4099, (3, 2)), (4, (4099, 6)))
]
"""Wider than one stretch of a shrink, on one side or on the other."""
LONG = replace(
    small_case("token-chunks", 17, (16, 2), ((3, 1), TOKEN_CHUNK + 77), ((0, 2), 4), dropout=True),
    sizes=replace(SMALL_TILES, row_tile=128, outer_tokens=128),
)
PACK = small_case(
    "pack", 36, (24, 16), ((8, 8), 21), ((0, 3), 9), ((24, 130), 5), ((1, 1), 1), dropout=True
)
