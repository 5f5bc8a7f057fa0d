"""Grouped expand: from the rank side to the wide side.

Y = scale · S · Bᵀ forward, dX = mask · (dS · A) / (1 - p) backward. The result is written, not
added: the base product is then accumulated onto it.
"""

import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.lora.dropout import LoraDropout, drop, keep_tile
from slidepack.kernels.lora.layout import RANK_CHUNK, LoraWeights
from slidepack.kernels.lora.tables import LoraTables, Side, read_tile

__all__ = ["expand_launch", "expand_plain"]


@triton.jit
def _expand_tile(
    s_ptr, w_ptr, y_ptr, row0, row_end, rank, first, last, width, s_stride, w_stride, y_stride,
    seed, threshold, samples_ptr, positions_ptr, site, scale,
    BM: tl.constexpr, BN: tl.constexpr, R: tl.constexpr, LONG: tl.constexpr, EVEN: tl.constexpr,
    DROPOUT: tl.constexpr, ADD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = row0 + tl.arange(0, BM)
    safe_rows = tl.minimum(rows, row_end - 1).to(tl.int64)
    r = tl.arange(0, R)
    s_rows = s_ptr + safe_rows[:, None] * s_stride + r[None, :]
    w_rows = w_ptr + r.to(tl.int64)[:, None] * w_stride
    s = tl.load(s_rows, mask=r[None, :] < rank, other=0.0)
    if DROPOUT:
        sample = tl.load(samples_ptr + safe_rows)
        position = tl.load(positions_ptr + safe_rows)
    for n in tl.range(first, last, BN, num_stages=STAGES):
        columns = n + tl.arange(0, BN)
        inside = r[:, None] < rank
        if not EVEN:
            inside = inside & (columns[None, :] < width)
        w = tl.load(w_rows + columns[None, :], mask=inside, other=0.0)
        acc = tl.dot(s, w, input_precision="ieee")
        if LONG:
            for r0 in tl.range(R, rank, R, num_stages=1):
                in_rank = r0 + r < rank
                more_s = tl.load(s_rows + r0, mask=in_rank[None, :], other=0.0)
                more = in_rank[:, None]
                if not EVEN:
                    more = more & (columns[None, :] < width)
                more_w = tl.load(
                    w_rows + tl.cast(r0, tl.int64) * w_stride + columns[None, :],
                    mask=more,
                    other=0.0,
                )
                acc = tl.dot(more_s, more_w, acc, input_precision="ieee")
        acc *= scale
        if DROPOUT:
            kept = keep_tile(seed, threshold, sample, position, site, n, BM, BN)
            acc = tl.where(kept, acc, 0.0)
        stored = rows[:, None] < row_end
        if not EVEN:
            stored = stored & (columns[None, :] < width)
        y = y_ptr + rows.to(tl.int64)[:, None] * y_stride + columns[None, :]
        if ADD:
            acc += tl.load(y, mask=stored, other=0.0).to(tl.float32)
        tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=stored)


# A site of 1 or of a multiple of 16 is no program of its own.
@triton.jit(do_not_specialize=["site"])
def _expand_kernel(
    s_ptr, w_ptr, y_ptr, tiles_ptr, offsets_ptr, scales_ptr,
    seeds_ptr, thresholds_ptr, samples_ptr, positions_ptr, site,
    s_stride, y_stride,
    BM: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, BUCKETS: tl.constexpr,
    LONG: tl.constexpr, EVEN: tl.constexpr, RANK8: tl.constexpr, SCALED: tl.constexpr,
    DROPOUT: tl.constexpr, ADD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile = tiles_ptr + tl.program_id(0) * 8
    adapter, row0, row_end, rank, s_column, wide_column, width, offset = read_tile(
        tile, EVEN, RANK8
    )
    w = w_ptr + tl.multiple_of(tl.load(offsets_ptr + adapter), 16) + offset
    first = tl.program_id(1) * SPAN
    last = tl.minimum(first + SPAN, width)
    scale = tl.load(scales_ptr + adapter) if SCALED else 1.0
    seed = tl.load(seeds_ptr + adapter) if DROPOUT else 0
    threshold = tl.load(thresholds_ptr + adapter) if DROPOUT else 0
    for bucket in tl.static_range(BUCKETS):
        # Rank 0 takes the first branch and writes zeros.
        if (
            (first < width)
            & ((rank <= 16 * 2**bucket) | (bucket == 3))
            & (rank > (8 * 2**bucket if bucket else -1))
        ):
            _expand_tile(
                s_ptr + s_column, w, y_ptr + wide_column, row0, row_end, rank, first, last, width,
                s_stride, width, y_stride,
                seed, threshold, samples_ptr, positions_ptr, site, scale,
                BM, BN, 16 * 2**bucket, LONG and bucket == 3, EVEN, DROPOUT, ADD,
                STAGES,
            )  # fmt: skip


def expand_launch(
    s: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    y: Tensor,
    *,
    add: bool,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> None:
    """Launch the kernel: fill `y`, all of it.

    Args:
        s: [T, s_columns].
        weights: in the dtype of `s`.
        tables: of this row.
        side: `tables.output_side` for B, `tables.input_side` for A.
        y: [T, width], contiguous.
        scales: [N] fp32 by which each adapter's result is multiplied, or None.
        dropout: the mask that is applied to the result, or None.
        site: number of the linear, a key of the dropout.
    """
    tiles, sizes = side.expand, tables.sizes
    if not tiles.host:
        return
    _expand_kernel[(len(tiles.host), triton.cdiv(tiles.widest, sizes.expand_span))](
        s,
        weights.pool,
        y,
        tiles.device,
        weights.offsets,
        weights.scales if scales is None else scales,
        weights.offsets if dropout is None else dropout.seeds,
        weights.offsets if dropout is None else dropout.thresholds,
        tiles.device if dropout is None else dropout.samples,
        tiles.device if dropout is None else dropout.positions,
        site,
        s.stride(0),
        y.stride(0),
        BM=sizes.row_tile,
        BN=sizes.expand_columns,
        SPAN=sizes.expand_span,
        BUCKETS=tiles.buckets,
        LONG=tables.layout.largest_rank > RANK_CHUNK,
        EVEN=tiles.alignment % sizes.expand_columns == 0,
        RANK8=tiles.rank8,
        SCALED=scales is not None,
        DROPOUT=dropout is not None,
        ADD=add,
        STAGES=sizes.expand_stages,
        num_warps=sizes.expand_warps,
    )


def expand_plain(
    s: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    y: Tensor,
    *,
    add: bool,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> None:
    """Do the same in plain PyTorch, adapter by adapter; see `expand_launch`."""
    for unit in side.units:
        rows = tables.rows(unit.adapter)
        product = s[rows, unit.s_slice] @ weights.of(unit)
        if scales is not None:
            product = product * scales[unit.adapter].to(product.dtype)
        if dropout is not None and unit.rank:
            # A backward pass ends with the gradient of its input.
            product = drop(product, dropout, unit.adapter, rows, site, last=True)
        if add:
            product = product + y[rows, unit.wide_columns]
        y[rows, unit.wide_columns] = product
