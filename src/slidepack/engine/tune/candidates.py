"""Sizes that are tried: few, so that each can be compiled, and some for cards of any size."""

import dataclasses
import itertools
from typing import Final

from slidepack.kernels.tiles import LoraTiles, Nf4Tiles, RmsNormBackwardTiles

__all__ = [
    "NF4",
    "RMS_NORM_BACKWARD",
    "expand_candidates",
    "outer_candidates",
    "shrink_candidates",
]

RMS_NORM_BACKWARD: Final = tuple(
    RmsNormBackwardTiles(programs_per_multiprocessor=programs, warps=warps, stages=stages)
    for warps, stages, programs in itertools.product((4, 8), (1, 3), (1, 2, 4))
)
NF4: Final = tuple(
    Nf4Tiles(blocks=blocks, warps=warps)
    for blocks, warps in itertools.product((16, 32, 64), (1, 2, 4))
)

_SHRINK: Final = (
    (64, 64, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 4),
    (64, 64, 4, 5),
    (64, 64, 8, 3),
    (64, 128, 4, 3),
    (64, 128, 4, 4),
    (64, 128, 8, 4),
    (32, 64, 4, 2),
    (32, 64, 4, 3),
    (32, 64, 4, 5),
    (32, 128, 4, 3),
    (32, 128, 4, 4),
)
"""Tokens, wide columns, warps, stages."""
_EXPAND: Final = (
    (64, 64, 512, 4, 1),
    (64, 64, 512, 4, 2),
    (64, 64, 512, 4, 3),
    (64, 64, 256, 4, 3),
    (64, 64, 1024, 4, 3),
    (64, 64, 512, 8, 2),
    (64, 128, 512, 4, 1),
    (64, 128, 512, 4, 2),
    (64, 128, 1024, 8, 2),
    (32, 64, 512, 4, 1),
    (32, 64, 512, 4, 3),
    (32, 128, 512, 4, 1),
    (32, 128, 1024, 4, 3),
)
"""Tokens, wide columns, span, warps, stages."""
_OUTER: Final = (
    (32, 64, 4, 2),
    (32, 64, 4, 3),
    (32, 64, 4, 4),
    (32, 128, 4, 2),
    (32, 128, 4, 3),
    (32, 128, 4, 4),
    (32, 128, 4, 5),
    (32, 128, 8, 4),
    (64, 64, 4, 3),
    (64, 128, 4, 3),
    (64, 128, 8, 3),
)
"""Tokens, wide columns, warps, stages."""


def shrink_candidates(tiles: LoraTiles) -> tuple[LoraTiles, ...]:
    """Return sizes that differ from `tiles` in what the shrink reads."""
    return tuple(
        dataclasses.replace(
            tiles,
            row_tile=row_tile,
            shrink_columns=columns,
            shrink_warps=warps,
            shrink_stages=stages,
        )
        for row_tile, columns, warps, stages in _SHRINK
    )


def expand_candidates(tiles: LoraTiles) -> tuple[LoraTiles, ...]:
    """Return sizes that differ from `tiles` in what the expand reads."""
    return tuple(
        dataclasses.replace(
            tiles,
            row_tile=row_tile,
            expand_columns=columns,
            expand_span=span,
            expand_warps=warps,
            expand_stages=stages,
        )
        for row_tile, columns, span, warps, stages in _EXPAND
    )


def outer_candidates(tiles: LoraTiles) -> tuple[LoraTiles, ...]:
    """Return sizes that differ from `tiles` in what the weight gradients read."""
    return tuple(
        dataclasses.replace(
            tiles,
            outer_tokens=tokens,
            outer_columns=columns,
            outer_warps=warps,
            outer_stages=stages,
        )
        for tokens, columns, warps, stages in _OUTER
    )
