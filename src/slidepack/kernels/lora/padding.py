"""Tile tables of a fixed size, for launches that are recorded once and replayed for other rows.

A tile of zeros has no width, so no program writes anything for it.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slidepack.kernels.lora.layout import Unit
from slidepack.kernels.lora.tables import (
    FIELDS,
    TOKEN_CHUNK,
    LoraTables,
    Reduction,
    Side,
    Tiles,
)

__all__ = ["padded_tables"]


def padded_tables(tables: LoraTables) -> LoraTables:
    """Return the tables with as many tiles as any row of as many tokens may need.

    Two rows of the same adapters and number of tokens then have tables of the same sizes, and
    launches with the one's can be replayed with the other's.

    Args:
        tables: in host memory.

    Raises:
        ValueError: they are elsewhere: each table would be a copy of its own on the device.
    """
    place = tables.input_side.shrink.device.device
    if place.type != "cpu":
        raise ValueError(f"the tables are on {place}; fill them up in host memory")
    row_tile, tokens = tables.sizes.row_tile, tables.tokens
    return replace(
        tables,
        input_side=_padded_side(tables.input_side, tokens, row_tile),
        output_side=_padded_side(tables.output_side, tokens, row_tile),
    )


def _padded_side(side: Side, tokens: int, row_tile: int) -> Side:
    whole = _by_adapter(side.units)
    cut = _by_adapter([chunk for unit in side.units for chunk in unit.chunks()])
    # A segment that needs slots is longer than a chunk, so at least half of each is full.
    slots = max(cut, default=0) * (2 * tokens // TOKEN_CHUNK if tokens > TOKEN_CHUNK else 0)
    sums = max(cut, default=0) * (tokens // TOKEN_CHUNK if tokens > TOKEN_CHUNK else 0)
    return replace(
        side,
        shrink=_padded(side.shrink, _most_tiles(cut, tokens, row_tile), FIELDS),
        expand=_padded(side.expand, _most_tiles(whole, tokens, row_tile), FIELDS),
        outer=_padded(side.outer, _most_tiles(cut, tokens, TOKEN_CHUNK), FIELDS + 1),
        reduction=Reduction(
            *_more_rows(side.reduction.host, side.reduction.device, sums, FIELDS + 2), slots
        ),
    )


def _by_adapter(units: Sequence[Unit]) -> list[int]:
    """Return how many units each adapter has."""
    counts = [0] * (1 + max((unit.adapter for unit in units), default=-1))
    for unit in units:
        counts[unit.adapter] += 1
    return counts


def _most_tiles(units: Sequence[int], tokens: int, rows: int) -> int:
    """Return the most tiles of so many rows that adapters with so many units can have.

    Each segment has one tile that is not full at most; the full ones are the most where all tokens
    belong to the adapter with the most units.
    """
    return sum(units) + max(units, default=0) * (tokens // rows)


def _padded(tiles: Tiles, most: int, columns: int) -> Tiles:
    host, device = _more_rows(tiles.host, tiles.device, most, columns)
    return replace(tiles, host=host, device=device)


def _more_rows(
    host: tuple[tuple[int, ...], ...], device: Tensor, most: int, columns: int
) -> tuple[tuple[tuple[int, ...], ...], Tensor]:
    missing = most - len(host)
    if missing < 0:
        raise AssertionError(f"{len(host)} tiles where at most {most} were expected")
    zeros = torch.zeros((missing, columns), dtype=device.dtype, device=device.device)
    return (*host, *((0,) * columns,) * missing), torch.cat([device, zeros])
