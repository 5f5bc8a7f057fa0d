"""Grouped shrink: from the wide side to the rank side.

S = drop(X) · Aᵀ forward, dS = scale · dY · B backward: one kernel, since B is stored transposed.
A program owns a tile of tokens and a fixed stretch of the wide side; where a linear is wider than
one stretch, a second kernel adds the stretches up in order. Ranks are never split over programs
but beyond 128.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.lora.dropout import LoraDropout, drop, keep_tile
from slidepack.kernels.lora.layout import RANK_CHUNK, LoraWeights
from slidepack.kernels.lora.tables import LoraTables, Side, read_tile
from slidepack.kernels.tiles import LoraTiles

__all__ = ["SPLIT", "shrink_launch", "shrink_plain", "shrink_stages"]

_SUM_ROWS: Final = 16
SPLIT: Final = 4096
"""Wide columns of one stretch: fixed, so that a token's sum has one order in every pack."""


@triton.jit
def _shrink_tile(
    x_ptr, w_ptr, out_ptr, row0, row_end, rank, first, last, x_stride, w_stride, out_stride,
    seed, threshold, samples_ptr, positions_ptr, site, scale,
    BM: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr,
    DROPOUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = row0 + tl.arange(0, BM)
    # Rows and ranks past the end read a neighbour's values and are not stored.
    safe_rows = tl.minimum(rows, row_end - 1).to(tl.int64)
    r = tl.arange(0, R)
    safe_r = tl.minimum(r, rank - 1).to(tl.int64)
    columns = tl.arange(0, BK)
    x_rows = x_ptr + safe_rows[:, None] * x_stride
    w_rows = w_ptr + safe_r[None, :] * w_stride
    if DROPOUT:
        sample = tl.load(samples_ptr + safe_rows)
        position = tl.load(positions_ptr + safe_rows)
    acc = tl.zeros((BM, R), dtype=tl.float32)
    for k in tl.range(first, last, BK, num_stages=STAGES):
        at = k + columns
        if EVEN:
            x = tl.load(x_rows + at[None, :])
            w = tl.load(w_rows + at[:, None])
        else:
            x = tl.load(x_rows + at[None, :], mask=at[None, :] < last, other=0.0)
            w = tl.load(w_rows + at[:, None], mask=at[:, None] < last, other=0.0)
        if DROPOUT:
            kept = keep_tile(seed, threshold, sample, position, site, k, BM, BK)
            x = tl.where(kept, x, tl.zeros_like(x))
        acc = tl.dot(x, w, acc, input_precision="ieee")
    inside = (rows[:, None] < row_end) & (r[None, :] < rank)
    out = out_ptr + rows.to(tl.int64)[:, None] * out_stride + r[None, :]
    tl.store(out, acc * scale, mask=inside)


# A site of 1 or of a multiple of 16 is no program of its own.
@triton.jit(do_not_specialize=["site"])
def _shrink_kernel(
    x_ptr, w_ptr, out_ptr, tiles_ptr, offsets_ptr, scales_ptr,
    seeds_ptr, thresholds_ptr, samples_ptr, positions_ptr, site,
    plane_stride, x_stride, out_stride,
    BM: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, BUCKETS: tl.constexpr,
    EVEN: tl.constexpr, RANK8: tl.constexpr, SCALED: tl.constexpr, DROPOUT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    tile = tiles_ptr + tl.program_id(0) * 8
    adapter, row0, row_end, rank, s_column, wide_column, width, offset = read_tile(
        tile, EVEN, RANK8
    )
    w = w_ptr + tl.multiple_of(tl.load(offsets_ptr + adapter), 16) + offset
    first = tl.program_id(1) * SPLIT
    last = tl.minimum(first + SPLIT, width)
    scale = tl.load(scales_ptr + adapter) if SCALED else 1.0
    seed = tl.load(seeds_ptr + adapter) if DROPOUT else 0
    threshold = tl.load(thresholds_ptr + adapter) if DROPOUT else 0
    out = out_ptr + tl.program_id(1).to(tl.int64) * plane_stride + s_column
    for bucket in tl.static_range(BUCKETS):
        # Ranks of one pack differ; each program runs the code of its own power of two.
        if (first < width) & (rank <= 16 * 2**bucket) & (rank > (8 * 2**bucket if bucket else 0)):
            _shrink_tile(
                x_ptr + wide_column, w, out, row0, row_end, rank, first, last,
                x_stride, width, out_stride,
                seed, threshold, samples_ptr, positions_ptr, site, scale,
                BM, BK, 16 * 2**bucket, EVEN, DROPOUT, STAGES,
            )  # fmt: skip


@triton.jit
def _shrink_sum_kernel(
    partial_ptr, out_ptr, tiles_ptr, plane_stride, out_stride,
    BM: tl.constexpr, R: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    tile = tiles_ptr + tl.program_id(0) * 8
    row0 = tl.load(tile + 1)
    row_end = tl.load(tile + 2)
    rank = tl.load(tile + 3)
    s_column = tl.load(tile + 4)
    width = tl.load(tile + 6)
    rows = row0 + tl.program_id(1) * BM + tl.arange(0, BM)
    r = tl.arange(0, R)
    inside = (rows[:, None] < row_end) & (r[None, :] < rank)
    at = rows.to(tl.int64)[:, None] * out_stride + s_column + r[None, :]
    acc = tl.zeros((BM, R), dtype=tl.float32)
    for split in range(0, tl.cdiv(width, SPLIT)):
        plane = partial_ptr + tl.cast(split, tl.int64) * plane_stride
        acc += tl.load(plane + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, acc, mask=inside)


def shrink_stages(sizes: LoraTiles, dtype: torch.dtype) -> int:
    """Return the stages for a dtype: the table's are of 16 bits, and fp32 is twice as large."""
    return sizes.shrink_stages if dtype.itemsize <= 2 else min(2, sizes.shrink_stages)


def shrink_launch(
    x: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    *,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> Tensor:
    """Launch the kernels.

    Args:
        x: [T, width], the wide side, contiguous.
        weights: in the dtype of `x`.
        tables: of this row.
        side: `tables.input_side` for A, `tables.output_side` for B.
        scales: [N] fp32 by which each adapter's result is multiplied, or None.
        dropout: applied to `x`, or None.
        site: number of the linear, a key of the dropout.

    Returns:
        [T, s_columns] in the dtype of `x`; columns beyond an adapter's rank are not written.
    """
    columns = tables.layout.s_columns
    # A gradient's last tile reads a whole block of ranks, past the end of the last row.
    elements = tables.tokens * columns
    out = torch.empty(elements + RANK_CHUNK, dtype=x.dtype, device=x.device)[:elements]
    out = out.view(tables.tokens, columns)
    tiles, sizes = side.shrink, tables.sizes
    if not tiles.host:
        return out
    splits = triton.cdiv(tiles.widest, SPLIT)
    target = out
    if splits > 1:
        target = torch.empty((splits, *out.shape), dtype=torch.float32, device=x.device)
    _shrink_kernel[(len(tiles.host), splits)](
        x,
        weights.pool,
        target,
        tiles.device,
        weights.offsets,
        weights.scales if scales is None else scales,
        weights.offsets if dropout is None else dropout.seeds,
        weights.offsets if dropout is None else dropout.thresholds,
        tiles.device if dropout is None else dropout.samples,
        tiles.device if dropout is None else dropout.positions,
        site,
        out.numel(),
        x.stride(0),
        columns,
        BM=sizes.row_tile,
        BK=sizes.shrink_columns,
        SPLIT=SPLIT,
        BUCKETS=tiles.buckets,
        EVEN=tiles.alignment % sizes.shrink_columns == 0,
        RANK8=tiles.rank8,
        SCALED=scales is not None,
        DROPOUT=dropout is not None,
        STAGES=shrink_stages(sizes, x.dtype),
        num_warps=sizes.shrink_warps,
    )
    if splits > 1:
        rows = min(_SUM_ROWS, sizes.row_tile)
        _shrink_sum_kernel[(len(tiles.host), sizes.row_tile // rows)](
            target,
            out,
            tiles.device,
            out.numel(),
            columns,
            BM=rows,
            R=16 * 2 ** (tiles.buckets - 1),
            SPLIT=SPLIT,
        )
    return out


def shrink_plain(
    x: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    *,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> Tensor:
    """Do the same in plain PyTorch, adapter by adapter; see `shrink_launch`."""
    out = torch.zeros((tables.tokens, tables.layout.s_columns), dtype=x.dtype, device=x.device)
    for unit in side.units:
        if not unit.rank:
            continue
        rows = tables.rows(unit.adapter)
        wide = x[rows, unit.wide_columns]
        if dropout is not None:
            wide = drop(wide, dropout, unit.adapter, rows, site)
        product = wide @ weights.of(unit).T
        if scales is not None:
            product = product * scales[unit.adapter].to(product.dtype)
        out[rows, unit.s_slice] = product
    return out
