"""Tile tables: which tokens of a packed row meet which adapter.

They are built once for a row and a layout, and shared by all decoder layers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.lora.layout import BLOCK_ALIGNMENT, RANK_CHUNK, LoraLayout, Unit
from slidepack.kernels.tiles import LoraTiles
from slidepack.kernels.upload import upload

__all__ = ["LoraTables", "Reduction", "Side", "Tiles", "lora_tables", "read_tile"]

TOKEN_CHUNK: Final = 2048
"""Tokens that one program of a weight gradient adds up, counted from its segment's start, so that
the order of the sum does not depend on what else is in the pack."""
FIELDS: Final = 8
"""Columns of a tile: adapter, first row, end of rows, rank, column in S, first column of the wide
side, width of the wide side, offset in the adapter's block."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile table on the host and on the device."""

    host: tuple[tuple[int, ...], ...]
    """Rows of `FIELDS` integers."""
    device: Tensor
    """The same, int32 [tiles, FIELDS]; a gradient's has one more column, its slot or -1."""
    widest: int
    """The largest width of the wide side."""
    alignment: int
    """The largest power of two, up to 128, that divides every width of the wide side; 1 where a
    unit's weights do not start at a multiple of `BLOCK_ALIGNMENT`."""
    buckets: int
    """How many of the rank blocks 16, 32, 64, 128 the kernels need."""
    rank8: bool
    """Whether every rank is a multiple of 8, so that rows of S are loaded in 16-byte pieces."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Weight gradients of segments longer than a token chunk: summed from slots, in order."""

    host: tuple[tuple[int, ...], ...]
    """Rows: a tile, then first slot and number of slots."""
    device: Tensor
    num_slots: int


@dataclass(frozen=True, slots=True)
class Side:
    """The tables of one side of the low-rank product: the input's (A) or the output's (B)."""

    units: tuple[Unit, ...]
    """Every run of ranks, uncut; the plain forms walk these."""
    shrink: Tiles
    """Rows by ranks from the wide side."""
    expand: Tiles
    """Rows by wide columns from S."""
    outer: Tiles
    """The weight gradient."""
    reduction: Reduction


@dataclass(frozen=True, slots=True)
class LoraTables:
    """Everything the kernels need to know of one packed row and one layout."""

    layout: LoraLayout
    bounds: tuple[int, ...]
    """N + 1 offsets: adapter i's tokens are bounds[i] to bounds[i + 1]."""
    input_side: Side
    output_side: Side
    sizes: LoraTiles
    block_sizes: tuple[int, ...]
    """Elements of each adapter's block."""
    side_stream: torch.cuda.Stream | None
    """Where the weight gradients run beside the rest of the backward pass; None for no such."""

    @property
    def tokens(self) -> int:
        """Tokens of the row."""
        return self.bounds[-1]

    def rows(self, adapter: int) -> slice:
        """Return the adapter's tokens."""
        return slice(self.bounds[adapter], self.bounds[adapter + 1])


@triton.jit
def read_tile(tile, EVEN: tl.constexpr, RANK8: tl.constexpr):
    """Return the fields of a tile, with the alignments that the flags promise."""
    adapter = tl.load(tile)
    first_row = tl.load(tile + 1)
    row_end = tl.load(tile + 2)
    rank = tl.load(tile + 3)
    s_column = tl.load(tile + 4)
    wide_column = tl.load(tile + 5)
    width = tl.load(tile + 6)
    offset = tl.load(tile + 7)
    # Loads are vectorised where the compiler knows the alignment.
    if RANK8:
        rank = tl.multiple_of(rank, 8)
        s_column = tl.multiple_of(s_column, 8)
    if EVEN:
        wide_column = tl.multiple_of(wide_column, 16)
        width = tl.multiple_of(width, 16)
        offset = tl.multiple_of(offset, 16)
    return adapter, first_row, row_end, rank, s_column, wide_column, width, offset


def lora_tables(
    layout: LoraLayout,
    bounds: Sequence[int],
    device: torch.device,
    *,
    sizes: LoraTiles | None = None,
    side_stream: torch.cuda.Stream | None = None,
) -> LoraTables:
    """Lay tiles over a packed row, adapter by adapter.

    Args:
        layout: the adapters.
        bounds: N + 1 offsets of the adapters' tokens; a segment may be empty.
        device: where the tables are wanted.
        sizes: of the tiles, which begin at a segment's start and never straddle two segments; None
            for the device's own.
        side_stream: runs the weight gradients beside the rest of the backward pass, which the
            kernels alone do not fill a large card with.

    Raises:
        ValueError: the bounds do not fit the adapters, or fall.
    """
    if len(bounds) != len(layout.ranks) + 1 or bounds[0] != 0:
        raise ValueError(f"bounds {tuple(bounds)} for {len(layout.ranks)} adapters, from 0")
    if any(start > end for start, end in itertools.pairwise(bounds)):
        raise ValueError(f"bounds {tuple(bounds)} fall")
    sizes = LoraTiles.of(device) if sizes is None else sizes
    return LoraTables(
        layout,
        tuple(bounds),
        _side(layout.input_units(), bounds, sizes.row_tile, device),
        _side(layout.output_units(), bounds, sizes.row_tile, device),
        sizes,
        tuple(layout.block_elements(adapter) for adapter in range(len(layout.ranks))),
        side_stream,
    )


def _side(units: list[Unit], bounds: Sequence[int], row_tile: int, device: torch.device) -> Side:
    # The longest programs begin first, so that none is left running alone at the end.
    units = sorted(units, key=lambda unit: unit.rank * unit.width, reverse=True)
    chunked = [chunk for unit in units for chunk in unit.chunks()]
    outer, sums, num_slots = _outer_tiles(chunked, bounds)

    def tiles(rows: list[tuple[int, ...]], columns: int = FIELDS) -> Tiles:
        return Tiles(
            tuple(rows),
            _table(rows, columns, device),
            max((unit.width for unit in units), default=1),
            _alignment(units),
            _buckets(chunked),
            all(unit.rank % 8 == 0 for unit in units),
        )

    return Side(
        units=tuple(units),
        shrink=tiles(_row_tiles(chunked, bounds, row_tile)),
        expand=tiles(_row_tiles(units, bounds, row_tile)),
        outer=tiles(outer, FIELDS + 1),
        reduction=Reduction(tuple(sums), _table(sums, FIELDS + 2, device), num_slots),
    )


def _alignment(units: list[Unit]) -> int:
    if any(unit.offset % BLOCK_ALIGNMENT for unit in units):
        # B follows A in a block: an input width of its own may leave B's rows unaligned.
        return 1
    common = math.gcd(RANK_CHUNK, *(unit.width for unit in units))
    return math.gcd(common, *(unit.wide_column for unit in units))


def _buckets(chunks: list[Unit]) -> int:
    largest = max((chunk.rank for chunk in chunks), default=1)
    return next(bucket for bucket in range(1, 5) if largest <= 8 * 2**bucket)


def _row_tiles(units: list[Unit], bounds: Sequence[int], row_tile: int) -> list[tuple[int, ...]]:
    return [
        unit.tile(row, bounds[unit.adapter + 1])
        for unit in units
        for row in range(bounds[unit.adapter], bounds[unit.adapter + 1], row_tile)
    ]


def _outer_tiles(
    units: list[Unit], bounds: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int]:
    """Tiles of a weight gradient; an empty segment has one, which writes zeros."""
    tiles: list[tuple[int, ...]] = []
    sums: list[tuple[int, ...]] = []
    slot = 0
    for unit in units:
        start, end = bounds[unit.adapter], bounds[unit.adapter + 1]
        if end - start <= TOKEN_CHUNK:
            tiles.append((*unit.tile(start, end), -1))
            continue
        first_slot = slot
        for row in range(start, end, TOKEN_CHUNK):
            tiles.append((*unit.tile(row, min(end, row + TOKEN_CHUNK)), slot))
            slot += 1
        sums.append((*unit.tile(start, end), first_slot, slot - first_slot))
    return tiles, sums, slot


def _table(rows: list[tuple[int, ...]], columns: int, device: torch.device) -> Tensor:
    return upload(torch.tensor(rows, dtype=torch.int32).reshape(-1, columns), device)
