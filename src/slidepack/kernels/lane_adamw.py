"""AdamW for many LoRA lanes in one launch: each lane has settings of its own.

The lanes' parameters lie in one flat pool, in blocks of `ADAMW_BLOCK` elements that each belong to
one lane or to none; see `kernels.adamw` for the state. The bits are those of `adamw` lane by lane.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.adamw import (
    ADAMW_BLOCK,
    AdamWState,
    adamw,
    read_master,
    updated,
    write_master,
)

__all__ = ["NUMBERS", "block_squares", "lane_adamw"]

NUMBERS = 8
"""Of a lane's step: the four of `adamw_scalars`, then 1 - beta1, beta2, 1 - beta2 and eps."""


@triton.jit
def _lane_adamw_kernel(
    grad_ptr,
    master_ptr,
    remainder_ptr,
    m_ptr,
    v_ptr,
    lanes_ptr,
    numbers_ptr,
    NUMBERS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.load(lanes_ptr + block)
    if lane >= 0:
        index = block * BLOCK + tl.arange(0, BLOCK)
        # Every block is whole.
        inside = index >= 0
        numbers = numbers_ptr + lane * NUMBERS
        grad = tl.load(grad_ptr + index).to(tl.float32) * tl.load(numbers)
        param = read_master(master_ptr, remainder_ptr, index, inside, SPLIT)
        m = tl.load(m_ptr + index)
        v = tl.load(v_ptr + index)
        m += (grad - m) * tl.load(numbers + 4)
        v = v * tl.load(numbers + 5) + grad * grad * tl.load(numbers + 6)
        param = updated(
            param,
            m,
            v,
            tl.load(numbers + 1),
            tl.load(numbers + 2),
            tl.load(numbers + 3),
            tl.load(numbers + 7),
        )
        tl.store(m_ptr + index, m)
        tl.store(v_ptr + index, v)
        write_master(master_ptr, remainder_ptr, index, inside, param, SPLIT)


@triton.jit
def _block_squares_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    x = tl.load(x_ptr + block * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(out_ptr + block, tl.sum(x * x, axis=0))


def lane_adamw(grads: Tensor, state: AdamWState, lanes: Tensor, numbers: Tensor) -> None:
    """One AdamW step of every lane in the table, in place.

    Equivalent to `adamw` over each lane's blocks with its own settings.

    Args:
        grads: [n] fp32, n a multiple of 1024.
        state: of the whole pool, fp32 moments.
        lanes: [n / 1024] int32: row of `numbers`, or -1 where nothing is to change.
        numbers: [N, 8] fp32: the four of `adamw_scalars`, then 1 - beta1, beta2, 1 - beta2, eps.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(grads, state, lanes, numbers)
    if not grads.is_cuda:
        _plain(grads, state, lanes, numbers)
    elif lanes.numel():
        lane_adamw_launch(grads, state, lanes, numbers)


def lane_adamw_launch(grads: Tensor, state: AdamWState, lanes: Tensor, numbers: Tensor) -> None:
    """Launch the kernel."""
    _lane_adamw_kernel[(lanes.numel(),)](
        grads,
        state.master,
        state.master if state.remainder is None else state.remainder,
        state.exp_avg,
        state.exp_avg_sq,
        lanes,
        numbers,
        NUMBERS=NUMBERS,
        SPLIT=state.remainder is not None,
        BLOCK=ADAMW_BLOCK,
        num_warps=4,
        # As in `adamw`: each operation is rounded by itself.
        enable_fp_fusion=False,
    )


def block_squares(x: Tensor) -> Tensor:
    """Return the sum of squares of each block of 1024 elements, [n / 1024] fp32.

    Raises:
        ValueError: the tensor is not flat, or no multiple of a block.
    """
    if x.ndim != 1 or x.numel() % ADAMW_BLOCK:
        raise ValueError(f"x is {tuple(x.shape)}, not [n] with n a multiple of {ADAMW_BLOCK}")
    if not x.is_cuda:
        return x.view(-1, ADAMW_BLOCK).float().square().sum(1)
    return block_squares_launch(x)


def block_squares_launch(x: Tensor) -> Tensor:
    """Launch the kernel."""
    out = torch.empty(x.numel() // ADAMW_BLOCK, dtype=torch.float32, device=x.device)
    if out.numel():
        _block_squares_kernel[(out.numel(),)](x, out, BLOCK=ADAMW_BLOCK, num_warps=4)
    return out


def _plain(grads: Tensor, state: AdamWState, lanes: Tensor, numbers: Tensor) -> None:
    for lane, row in enumerate(numbers.tolist()):
        for block in torch.nonzero(lanes == lane)[:, 0].tolist():
            start, stop = block * ADAMW_BLOCK, (block + 1) * ADAMW_BLOCK
            adamw(
                grads[start:stop],
                state.part(start, stop),
                numbers[lane, :4],
                beta1=1.0 - row[4],
                beta2=row[5],
                eps=row[7],
            )


def _check(grads: Tensor, state: AdamWState, lanes: Tensor, numbers: Tensor) -> None:
    blocks = lanes.numel()
    if grads.shape != (blocks * ADAMW_BLOCK,) or state.master.shape != grads.shape:
        raise ValueError(
            f"gradients are {tuple(grads.shape)}, the master is {tuple(state.master.shape)}, for "
            f"{blocks} blocks of {ADAMW_BLOCK}"
        )
    if lanes.dtype != torch.int32 or numbers.ndim != 2 or numbers.shape[1] != NUMBERS:
        raise ValueError(
            f"lanes are {lanes.dtype}, numbers are {tuple(numbers.shape)}; they must be "
            f"{torch.int32} and [N, {NUMBERS}]"
        )
    moments = (state.exp_avg.dtype, state.exp_avg_sq.dtype)
    if moments != (torch.float32, torch.float32):
        raise ValueError(f"moments are {moments}, not fp32")
