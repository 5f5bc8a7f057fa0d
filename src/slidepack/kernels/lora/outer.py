"""Grouped weight gradients: dA = dSᵀ · drop(X) and dB = scale · dYᵀ · S, one kernel for both.

A program owns an adapter's block of wide columns and walks its tokens in order: nothing is added
by atomics, and the order does not depend on what else is in the pack. Segments longer than
`TOKEN_CHUNK` are summed from slots by a second kernel, also in order.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.lora.dropout import LoraDropout, drop, keep_tile
from slidepack.kernels.lora.layout import RANK_CHUNK, LoraWeights
from slidepack.kernels.lora.tables import LoraTables, Side, read_tile

__all__ = ["outer_launch", "outer_plain"]

_SUM_BLOCK: Final = 1024


@triton.jit
def _outer_tile(
    s_ptr, x_ptr, out_ptr, first_row, row_end, rank, first, width, s_stride, x_stride, out_stride,
    seed, threshold, samples_ptr, positions_ptr, site, scale, add,
    BT: tl.constexpr, BN: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr,
    DROPOUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    r = tl.arange(0, R)
    columns = first + tl.arange(0, BN)
    tokens = tl.arange(0, BT)
    # The wide side comes first in the product: it is the one long enough for the matrix units.
    acc = tl.zeros((BN, R), dtype=tl.float32)
    for row in tl.range(first_row, row_end, BT, num_stages=STAGES):
        rows = row + tokens
        at = rows.to(tl.int64)
        there = rows < row_end
        # Columns past the rank hold anything; what comes of them is not stored.
        s = tl.load(s_ptr + at[:, None] * s_stride + r[None, :], mask=there[:, None], other=0.0)
        inside = there[:, None]
        if not EVEN:
            inside = inside & (columns[None, :] < width)
        x = tl.load(x_ptr + at[:, None] * x_stride + columns[None, :], mask=inside, other=0.0)
        if DROPOUT:
            sample = tl.load(samples_ptr + at, mask=there, other=0)
            position = tl.load(positions_ptr + at, mask=there, other=0)
            kept = keep_tile(seed, threshold, sample, position, site, first, BT, BN)
            x = tl.where(kept, x, tl.zeros_like(x))
        acc = tl.dot(tl.trans(x), s, acc, input_precision="ieee")
    acc = tl.trans(acc) * scale
    out = out_ptr + r.to(tl.int64)[:, None] * out_stride + columns[None, :]
    stored = r[:, None] < rank
    if not EVEN:
        stored = stored & (columns[None, :] < width)
    if add:
        acc += tl.load(out, mask=stored, other=0.0)
    tl.store(out, acc, mask=stored)


# A site of 1 or of a multiple of 16 is no program of its own.
@triton.jit(do_not_specialize=["site"])
def _outer_kernel(
    s_ptr, x_ptr, grads_ptr, slots_ptr, tiles_ptr, offsets_ptr, scales_ptr,
    seeds_ptr, thresholds_ptr, samples_ptr, positions_ptr, site,
    s_stride, x_stride, slot_stride, slot_row,
    BT: tl.constexpr, BN: tl.constexpr, BUCKETS: tl.constexpr, EVEN: tl.constexpr,
    RANK8: tl.constexpr, SCALED: tl.constexpr, DROPOUT: tl.constexpr, ADD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    tile = tiles_ptr + tl.program_id(0) * 9
    adapter, first_row, row_end, rank, s_column, wide_column, width, offset = read_tile(
        tile, EVEN, RANK8
    )
    slot = tl.load(tile + 8)
    first = tl.program_id(1) * BN
    scale = tl.load(scales_ptr + adapter) if SCALED else 1.0
    seed = tl.load(seeds_ptr + adapter) if DROPOUT else 0
    threshold = tl.load(thresholds_ptr + adapter) if DROPOUT else 0
    out = grads_ptr + tl.multiple_of(tl.load(offsets_ptr + adapter), 16) + offset
    out_stride = width
    add = ADD
    if slot >= 0:
        out = slots_ptr + tl.multiple_of(slot.to(tl.int64) * slot_stride, 16)
        out_stride = tl.multiple_of(slot_row, 16) if EVEN else slot_row
        add = False
    for bucket in tl.static_range(BUCKETS):
        if (first < width) & (rank <= 16 * 2**bucket) & (rank > (8 * 2**bucket if bucket else 0)):
            _outer_tile(
                s_ptr + s_column, x_ptr + wide_column, out, first_row, row_end, rank,
                first, width, s_stride, x_stride, out_stride,
                seed, threshold, samples_ptr, positions_ptr, site, scale, add,
                BT, BN, 16 * 2**bucket, EVEN, DROPOUT, STAGES,
            )  # fmt: skip


@triton.jit
def _outer_sum_kernel(
    slots_ptr, grads_ptr, sums_ptr, offsets_ptr, slot_stride, slot_row,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = sums_ptr + tl.program_id(0) * 10
    adapter = tl.load(entry)
    rank = tl.load(entry + 3)
    width = tl.load(entry + 6)
    offset = tl.load(entry + 7)
    first_slot = tl.load(entry + 8)
    count = tl.load(entry + 9)
    r = tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (r < rank) & (columns < width)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for slot in range(first_slot, first_slot + count):
        row = slots_ptr + tl.cast(slot, tl.int64) * slot_stride + r * slot_row
        acc += tl.load(row + columns, mask=inside, other=0.0)
    out = grads_ptr + tl.load(offsets_ptr + adapter) + offset + r.to(tl.int64) * width + columns
    if ADD:
        acc += tl.load(out, mask=inside, other=0.0)
    tl.store(out, acc, mask=inside)


def outer_launch(
    s: Tensor,
    x: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    *,
    add: bool,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> None:
    """Launch the kernels: write or add to `weights.grads`.

    Args:
        s: [T, s_columns], the rank side.
        x: [T, width], the wide side, contiguous.
        weights: whose gradients these are.
        tables: of this row.
        side: `tables.input_side` for A, `tables.output_side` for B.
        add: add to what the gradients hold; else overwrite it.
        scales: [N] fp32 by which each adapter's result is multiplied, or None.
        dropout: applied to `x`, or None.
        site: number of the linear, a key of the dropout.
    """
    tiles, reduction, sizes = side.outer, side.reduction, tables.sizes
    if not tiles.host:
        return
    slot_row = tiles.widest
    slots = weights.grads
    if reduction.num_slots:
        shape = (reduction.num_slots, RANK_CHUNK, slot_row)
        slots = torch.empty(shape, dtype=torch.float32, device=x.device)
    _outer_kernel[(len(tiles.host), triton.cdiv(tiles.widest, sizes.outer_columns))](
        s,
        x,
        weights.grads,
        slots,
        tiles.device,
        weights.offsets,
        weights.scales if scales is None else scales,
        weights.offsets if dropout is None else dropout.seeds,
        weights.offsets if dropout is None else dropout.thresholds,
        tiles.device if dropout is None else dropout.samples,
        tiles.device if dropout is None else dropout.positions,
        site,
        s.stride(0),
        x.stride(0),
        RANK_CHUNK * slot_row,
        slot_row,
        BT=sizes.outer_tokens,
        BN=sizes.outer_columns,
        BUCKETS=tiles.buckets,
        EVEN=tiles.alignment % sizes.outer_columns == 0,
        RANK8=tiles.rank8,
        SCALED=scales is not None,
        DROPOUT=dropout is not None,
        ADD=add,
        STAGES=sizes.outer_stages,
        num_warps=sizes.outer_warps,
    )
    if reduction.num_slots:
        blocks = triton.cdiv(tiles.widest, _SUM_BLOCK)
        _outer_sum_kernel[(len(reduction.host), min(RANK_CHUNK, 8 * 2**tiles.buckets), blocks)](
            slots,
            weights.grads,
            reduction.device,
            weights.offsets,
            RANK_CHUNK * slot_row,
            slot_row,
            ADD=add,
            BLOCK=_SUM_BLOCK,
        )


def outer_plain(
    s: Tensor,
    x: Tensor,
    weights: LoraWeights,
    tables: LoraTables,
    side: Side,
    *,
    add: bool,
    scales: Tensor | None = None,
    dropout: LoraDropout | None = None,
    site: int = 0,
) -> None:
    """Do the same in plain PyTorch, adapter by adapter; see `outer_launch`."""
    for unit in side.units:
        if not unit.rank:
            continue
        rows = tables.rows(unit.adapter)
        wide = x[rows, unit.wide_columns]
        if dropout is not None:
            wide = drop(wide, dropout, unit.adapter, rows, site)
        grad = weights.grad_of(unit)
        product = s[rows, unit.s_slice].T.to(grad.dtype) @ wide.to(grad.dtype)
        if scales is not None:
            product = product * scales[unit.adapter].to(grad.dtype)
        if add:
            grad.add_(product)
        else:
            grad.copy_(product)
