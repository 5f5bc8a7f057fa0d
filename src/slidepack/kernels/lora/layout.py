"""Adapters of one linear: which ranks, and where their weights are.

Shapes: `N` adapters, `P` parts of a linear (q, k and v share an input, so they are three parts of
one linear), `R` an adapter's stacked rank: the ranks of its parts, added up.

An adapter's weights for one linear are one contiguous block of a flat pool: the A matrices of its
parts stacked, [R, in], then each part's B transposed, [rank, width]. B is stored transposed so that
its rows are long and aligned whatever the rank.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

__all__ = ["BLOCK_ALIGNMENT", "RANK_CHUNK", "LoraLayout", "LoraWeights", "Unit"]

BLOCK_ALIGNMENT: Final = 16
"""Elements to which a block's start is aligned, so that a row can be loaded in 16-byte pieces."""
RANK_CHUNK: Final = 128
"""Ranks that one program of a shrink or a gradient holds; a larger rank takes several."""


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
        """Return the row of a tile table for some tokens."""
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
    """alpha / rank, or alpha / sqrt(rank), of each adapter, [N] on the device, as the gradients."""

    def __post_init__(self) -> None:
        """Check what the kernels rely on.

        Raises:
            ValueError: tables of different lengths, starts that are not aligned, or gradients that
                do not fit the weights.
        """
        count = len(self.starts)
        if self.offsets.shape != (count,) or self.scales.shape != (count,):
            raise ValueError(
                f"{count} starts, offsets {tuple(self.offsets.shape)}, "
                f"scales {tuple(self.scales.shape)}"
            )
        if any(start < 0 or start % BLOCK_ALIGNMENT for start in self.starts):
            raise ValueError(f"starts {self.starts} are not all multiples of {BLOCK_ALIGNMENT}")
        wide = torch.promote_types(self.pool.dtype, torch.float32)
        if self.grads.shape != self.pool.shape or self.grads.dtype != wide:
            raise ValueError(
                f"gradients are {tuple(self.grads.shape)} {self.grads.dtype}, the pool is "
                f"{tuple(self.pool.shape)} {self.pool.dtype}; gradients must be {wide}"
            )

    def of(self, unit: Unit) -> Tensor:
        """Return a unit's weights, [rank, width], as a view."""
        return self._view(self.pool, unit)

    def grad_of(self, unit: Unit) -> Tensor:
        """Return a unit's gradient, [rank, width], as a view."""
        return self._view(self.grads, unit)

    def _view(self, flat: Tensor, unit: Unit) -> Tensor:
        start = self.starts[unit.adapter] + unit.offset
        return flat[start : start + unit.rank * unit.width].view(unit.rank, unit.width)
