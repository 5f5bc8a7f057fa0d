"""Which tokens meet which adapter: layouts of adapters, and the tile tables of one packed row.

Shapes: `T` packed tokens, `N` adapters, `P` parts of a linear (q, k and v share an input, so they
are three parts of one linear), `R` an adapter's stacked rank: the ranks of its parts, added up.

An adapter's weights for one linear are one contiguous block of a flat pool: the A matrices of its
parts stacked, [R, in], then each part's B transposed, [rank, width]. B is stored transposed so that
its rows are long and aligned whatever the rank.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.kernels.tiles import LoraTileSizes

__all__ = [
    "BLOCK_ALIGNMENT",
    "LoraLayout",
    "LoraTables",
    "LoraWeights",
    "Reduction",
    "Side",
    "Tiles",
    "Unit",
    "lora_tables",
]

BLOCK_ALIGNMENT: Final = 16
"""Elements to which a block's start is aligned, so that a row can be loaded in 16-byte pieces."""
RANK_CHUNK: Final = 128
"""Ranks that one program of a shrink or a gradient holds; a larger rank takes several."""
TOKEN_CHUNK: Final = 2048
"""Tokens that one program of a weight gradient adds up, counted from its segment's start, so that
the order of the sum does not depend on what else is in the pack."""
FIELDS: Final = 8
"""Columns of a tile: adapter, first row, end of rows, rank, column in S, first column of the wide
side, width of the wide side, offset in the adapter's block."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of consecutive ranks of one adapter, against one run of wide columns."""

    adapter: int
    rank: int
    s_column: int
    wide_column: int
    width: int
    offset: int

    def tile(self, first_row: int, end_row: int) -> tuple[int, ...]:
        return (
            self.adapter,
            first_row,
            end_row,
            self.rank,
            self.s_column,
            self.wide_column,
            self.width,
            self.offset,
        )

    @property
    def s_slice(self) -> slice:
        """Its columns of S."""
        return slice(self.s_column, self.s_column + self.rank)

    @property
    def wide_columns(self) -> slice:
        """Its columns of the wide side."""
        return slice(self.wide_column, self.wide_column + self.width)

    def chunks(self) -> list["Unit"]:
        """Cut into runs of at most `RANK_CHUNK` ranks."""
        return [
            Unit(
                self.adapter,
                min(RANK_CHUNK, self.rank - first),
                self.s_column + first,
                self.wide_column,
                self.width,
                self.offset + first * self.width,
            )
            for first in range(0, self.rank, RANK_CHUNK)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraLayout:
    """The adapters of one linear; the same for every decoder layer."""

    in_width: int
    """Input width of the linear."""
    part_widths: tuple[int, ...]
    """Output width of each part."""
    ranks: tuple[tuple[int, ...], ...]
    """[N][P] rank of each adapter's part; 0 where the adapter leaves it alone."""

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: a width below 1, a negative rank, or ranks that do not match the parts.
        """
        if self.in_width < 1 or not self.part_widths or min(self.part_widths) < 1:
            raise ValueError(f"widths {self.in_width} and {self.part_widths} must be positive")
        for ranks in self.ranks:
            if len(ranks) != len(self.part_widths) or min(ranks) < 0:
                raise ValueError(f"ranks {ranks} do not fit {len(self.part_widths)} parts")

    @property
    def out_width(self) -> int:
        """Output width of the linear."""
        return sum(self.part_widths)

    @property
    def largest_rank(self) -> int:
        """The largest stacked rank of an adapter."""
        return max((sum(ranks) for ranks in self.ranks), default=0)

    @property
    def s_columns(self) -> int:
        """Width of the shrunk activations, [T, s_columns]."""
        return max(BLOCK_ALIGNMENT, -(-self.largest_rank // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT)

    def block_elements(self, adapter: int) -> int:
        """Elements of an adapter's block, alignment included."""
        ranks = self.ranks[adapter]
        wide = zip(ranks, self.part_widths, strict=True)
        size = sum(ranks) * self.in_width + sum(rank * width for rank, width in wide)
        return -(-size // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT

    def views(self, flat: Tensor, offset: int, adapter: int) -> list[tuple[Tensor, Tensor]]:
        """Return (A [rank, in], B transposed [rank, width]) of each part, as views of a pool."""
        ranks = self.ranks[adapter]
        at = offset
        stacked = []
        for rank in ranks:
            stacked.append(flat[at : at + rank * self.in_width].view(rank, self.in_width))
            at += rank * self.in_width
        pairs = []
        for a, rank, width in zip(stacked, ranks, self.part_widths, strict=True):
            pairs.append((a, flat[at : at + rank * width].view(rank, width)))
            at += rank * width
        return pairs

    def input_units(self) -> list[Unit]:
        """A of each adapter, parts stacked: what shares an input is one product."""
        return [
            Unit(adapter, sum(ranks), 0, 0, self.in_width, 0)
            for adapter, ranks in enumerate(self.ranks)
        ]

    def output_units(self) -> list[Unit]:
        """B of each adapter's part."""
        units = []
        for adapter, ranks in enumerate(self.ranks):
            offset, s_column, wide_column = sum(ranks) * self.in_width, 0, 0
            for rank, width in zip(ranks, self.part_widths, strict=True):
                units.append(Unit(adapter, rank, s_column, wide_column, width, offset))
                offset += rank * width
                s_column += rank
                wide_column += width
        return units


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
    """The largest power of two, up to 128, that divides every width of the wide side."""
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
    """Rows × ranks from the wide side."""
    expand: Tiles
    """Rows × wide columns from S."""
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
    sizes: LoraTileSizes

    @property
    def tokens(self) -> int:
        """Tokens of the row."""
        return self.bounds[-1]

    def rows(self, adapter: int) -> slice:
        """Return the adapter's tokens."""
        return slice(self.bounds[adapter], self.bounds[adapter + 1])


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """Where the adapters' weights for one linear of one decoder layer are."""

    pool: Tensor
    """Flat weights of all adapters, in the dtype of the activations."""
    grads: Tensor
    """Flat gradients, fp32 (fp64 beside an fp64 pool), laid out as the pool."""
    starts: tuple[int, ...]
    """Start of each adapter's block; a multiple of `BLOCK_ALIGNMENT`."""
    offsets: Tensor
    """The same on the device, int64 [N]."""
    scales: Tensor
    """alpha / rank, or alpha / sqrt(rank), of each adapter, fp32 [N] on the device."""

    def of(self, unit: Unit) -> Tensor:
        """Return a unit's weights, [rank, width], as a view."""
        return self._view(self.pool, unit)

    def grad_of(self, unit: Unit) -> Tensor:
        """Return a unit's gradient, [rank, width], as a view."""
        return self._view(self.grads, unit)

    def _view(self, flat: Tensor, unit: Unit) -> Tensor:
        start = self.starts[unit.adapter] + unit.offset
        return flat[start : start + unit.rank * unit.width].view(unit.rank, unit.width)


def lora_tables(
    layout: LoraLayout, bounds: Sequence[int], sizes: LoraTileSizes, device: torch.device
) -> LoraTables:
    """Lay tiles over a packed row, adapter by adapter.

    Args:
        layout: the adapters.
        bounds: N + 1 offsets of the adapters' tokens; a segment may be empty.
        sizes: tile sizes. Tiles begin at a segment's start and never straddle two segments.
        device: where the tables are wanted.

    Raises:
        ValueError: the bounds do not fit the adapters, or fall.
    """
    if len(bounds) != len(layout.ranks) + 1 or bounds[0] != 0:
        raise ValueError(f"{len(bounds)} bounds for {len(layout.ranks)} adapters, from {bounds[0]}")
    if any(start > end for start, end in itertools.pairwise(bounds)):
        raise ValueError(f"bounds {tuple(bounds)} fall")
    return LoraTables(
        layout,
        tuple(bounds),
        _side(layout.input_units(), bounds, sizes.row_tile, device),
        _side(layout.output_units(), bounds, sizes.row_tile, device),
        sizes,
    )


def _side(units: list[Unit], bounds: Sequence[int], row_tile: int, device: torch.device) -> Side:
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
    common = math.gcd(RANK_CHUNK, *(unit.width for unit in units))
    return math.gcd(common, *(unit.wide_column for unit in units))


def _buckets(chunks: list[Unit]) -> int:
    largest = max((chunk.rank for chunk in chunks), default=1)
    return next(bucket for bucket in range(1, 5) if largest <= 8 * 2**bucket)


def _row_tiles(
    units: list[Unit], bounds: Sequence[int], row_tile: int
) -> list[tuple[int, ...]]:
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
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, columns).to(device)
