"""Linear head + cross entropy in chunks of tokens: loss and gradients without [T, V] logits.

Shapes: `S` supervised tokens, `D` model width, `V` vocabulary, `C` tokens of a chunk.
"""

import functools
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from slidepack.kernels.reference import cross_entropy_ref

__all__ = ["IGNORED", "HeadLoss", "cross_entropy_launch", "linear_cross_entropy"]

IGNORED: Final = -100
"""The label of a token that does not count."""
_CHUNK_ELEMENTS: Final = 1 << 28
"""Logits held at once on a GPU: 512 MiB in bf16. Fewer would leave the products too small, and each
chunk reads and writes the head's fp32 gradient once."""
_CPU_CHUNK_ELEMENTS: Final = 1 << 25
"""128 MiB in fp32: small beside any head, large enough to keep the cores busy."""
_BLOCK: Final = 8192


class HeadLoss(NamedTuple):
    """What the head gives back."""

    losses: Tensor
    """[S] fp32 (fp64 for fp64 input): weight times cross entropy; 0 where ignored."""
    hidden_grad: Tensor | None
    """[S, D] gradient of the sum of `losses`, in the dtype of the hidden states."""
    head_grad: Tensor | None
    """[V, D] fp32 gradient of the sum of `losses`."""


@triton.jit
def _capped(x, soft_cap):
    """soft_cap · tanh(x / soft_cap), by exp, which every target has."""
    e = tl.exp(-2.0 * tl.abs(x) / soft_cap)
    t = (1.0 - e) / (1.0 + e)
    return soft_cap * tl.where(x < 0, -t, t)


@triton.jit
def _cross_entropy_kernel(
    logits_ptr,
    labels_ptr,
    weights_ptr,
    losses_ptr,
    row_stride,
    vocab,
    soft_cap,
    SOFT_CAP: tl.constexpr,
    BACKWARD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Loss of one token; the logits are overwritten by the gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * row_stride
    label = tl.load(labels_ptr + row)
    weight = tl.load(weights_ptr + row)
    # One pass for maximum and sum of exponentials: the sum is rescaled as the maximum rises.
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(base + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
        if SOFT_CAP:
            x = tl.where(columns < vocab, _capped(x, soft_cap), float("-inf"))
        higher = tl.maximum(best, x)
        # A lane that has seen only masked columns must not subtract infinity from infinity.
        rescale = tl.where(best == float("-inf"), 0.0, tl.exp(best - higher))
        total = total * rescale + tl.where(x == float("-inf"), 0.0, tl.exp(x - higher))
        best = higher
    highest = tl.max(best, axis=0)
    partial = tl.where(best == float("-inf"), 0.0, total * tl.exp(best - highest))
    log_sum = highest + tl.log(tl.sum(partial, axis=0))
    hit = tl.load(base + label).to(tl.float32)
    if SOFT_CAP:
        hit = _capped(hit, soft_cap)
    tl.store(losses_ptr + row, weight * (log_sum - hit))
    if BACKWARD:
        for start in range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
            slope = 1.0
            if SOFT_CAP:
                capped = _capped(x, soft_cap)
                ratio = capped / soft_cap
                slope = 1.0 - ratio * ratio
                x = capped
            gradient = tl.exp(x - log_sum) - tl.where(columns == label, 1.0, 0.0)
            tl.store(base + columns, weight * gradient * slope, mask=columns < vocab)


def cross_entropy_launch(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor,
    losses: Tensor,
    soft_cap: float | None,
    *,
    backward: bool,
) -> None:
    """Launch the kernel: fill `losses`; with `backward`, overwrite the logits by their gradient."""
    tokens, vocab = logits.shape
    if not tokens:
        return
    _cross_entropy_kernel[(tokens,)](
        logits,
        labels,
        weights,
        losses,
        logits.stride(0),
        vocab,
        1.0 if soft_cap is None else soft_cap,
        SOFT_CAP=soft_cap is not None,
        BACKWARD=backward,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)),
        num_warps=16,
    )


@torch.no_grad()
def linear_cross_entropy(
    hidden_SD: Tensor,
    head_VD: Tensor,
    labels_S: Tensor,
    *,
    weights_S: Tensor | None = None,
    soft_cap: float | None = None,
    hidden_grad: bool = True,
    head_grad: bool = False,
    none_ignored: bool = False,
    add_to: Tensor | None = None,
) -> HeadLoss:
    """Weighted cross entropy of a linear head, and the gradients of its sum.

    Equivalent, in fp32, to

        logits = hidden @ head.T
        logits = soft_cap * tanh(logits / soft_cap)            # where a cap is given
        losses = weights * F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
        losses.sum().backward()

    Ignored tokens are dropped before the first product, so they cost nothing. The logits exist for
    one chunk of tokens at a time, and their gradient takes their place.

    Args:
        hidden_SD: [S, D].
        head_VD: [V, D], same dtype.
        labels_S: [S] int64, each in 0..V-1 or -100.
        weights_S: [S] fp32; None counts every token once.
        soft_cap: Gemma's bound of the logits.
        hidden_grad: whether the gradient of the hidden states is wanted.
        head_grad: whether that of the head is wanted; summed in fp32.
        none_ignored: the caller knows that no label is -100; finding those out makes the host wait
            for the device.
        add_to: [V, D], contiguous, in the dtype of the head's gradient, which is added to it and
            returned in it.

    Returns:
        Losses, and the gradients asked for.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(hidden_SD, head_VD, labels_S, weights_S, add_to)
    wide = torch.promote_types(hidden_SD.dtype, torch.float32)
    weights = torch.ones_like(labels_S, dtype=wide) if weights_S is None else weights_S.to(wide)
    run = functools.partial(
        _compact,
        soft_cap=soft_cap,
        hidden_grad=hidden_grad,
        head_grad=head_grad,
        add_to=add_to,
    )
    if none_ignored:
        return run(hidden_SD, head_VD, labels_S, weights)
    counted = torch.nonzero(labels_S != IGNORED)[:, 0]
    compact = run(hidden_SD[counted], head_VD, labels_S[counted], weights[counted])
    losses = torch.zeros(labels_S.shape, dtype=wide, device=hidden_SD.device)
    losses[counted] = compact.losses
    grad = None
    if compact.hidden_grad is not None:
        grad = torch.zeros_like(hidden_SD)
        grad[counted] = compact.hidden_grad
    return HeadLoss(losses, grad, compact.head_grad)


def _compact(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    soft_cap: float | None,
    hidden_grad: bool,
    head_grad: bool,
    add_to: Tensor | None,
) -> HeadLoss:
    """Loss and gradients of tokens that all count."""
    tokens, vocab = hidden.shape[0], head.shape[0]
    losses = torch.empty(tokens, dtype=weights.dtype, device=hidden.device)
    d_hidden = torch.empty_like(hidden) if hidden_grad else None
    d_head = None
    if head_grad:
        d_head = add_to
    if head_grad and d_head is None:
        d_head = torch.zeros(head.shape, dtype=weights.dtype, device=head.device)
    limit = _CHUNK_ELEMENTS if hidden.is_cuda else _CPU_CHUNK_ELEMENTS
    chunk = min(tokens, max(1, limit // vocab))
    # One buffer for all chunks: a new one would be there before the last one is gone.
    buffer = torch.empty((chunk, vocab), dtype=hidden.dtype, device=hidden.device)
    for start in range(0, tokens, max(1, chunk)):
        part = slice(start, min(start + chunk, tokens))
        logits = buffer[: part.stop - start]
        torch.mm(hidden[part], head.T, out=logits)
        backward = hidden_grad or head_grad
        losses[part], d_logits = _loss_of_logits(
            logits, labels[part], weights[part], soft_cap, backward=backward
        )
        if d_hidden is not None:
            torch.mm(d_logits, head, out=d_hidden[part])
        if d_head is not None:
            _add_head_grad(d_head, d_logits, hidden[part])
    return HeadLoss(losses, d_hidden, d_head)


def _loss_of_logits(
    logits: Tensor, labels: Tensor, weights: Tensor, soft_cap: float | None, *, backward: bool
) -> tuple[Tensor, Tensor]:
    """Return the losses of a chunk and, in place of its logits, their gradient."""
    if not logits.is_cuda:
        return cross_entropy_ref(logits, labels, weights, soft_cap)
    losses = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
    cross_entropy_launch(logits, labels, weights, losses, soft_cap, backward=backward)
    return losses, logits


def _add_head_grad(d_head: Tensor, d_logits: Tensor, hidden: Tensor) -> None:
    """Add d_logits.T @ hidden to the head's gradient, summed in the gradient's own wide dtype."""
    if d_head.dtype == d_logits.dtype:
        d_head.addmm_(d_logits.T, hidden)
    elif d_head.is_cuda:
        torch.addmm(d_head, d_logits.T, hidden, out_dtype=d_head.dtype, out=d_head)
    else:
        d_head.addmm_(d_logits.T.to(d_head.dtype), hidden.to(d_head.dtype))


def _check(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor | None, add_to: Tensor | None
) -> None:
    if hidden.ndim != 2:
        raise ValueError(f"hidden is {tuple(hidden.shape)}, not [S, D]")
    tokens, width = hidden.shape
    if head.ndim != 2 or head.shape[1] != width or head.dtype != hidden.dtype:
        raise ValueError(
            f"head is {tuple(head.shape)} {head.dtype}, "
            f"hidden is {tuple(hidden.shape)} {hidden.dtype}"
        )
    if labels.shape != (tokens,) or labels.dtype != torch.int64:
        raise ValueError(f"labels are {tuple(labels.shape)} {labels.dtype}, not ({tokens},) int64")
    if weights is not None and (weights.shape != (tokens,) or not weights.is_floating_point()):
        raise ValueError(
            f"weights are {tuple(weights.shape)} {weights.dtype}, not ({tokens},) floating point"
        )
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if add_to is not None and (add_to.shape != head.shape or add_to.dtype != wide):
        raise ValueError(
            f"add_to is {tuple(add_to.shape)} {add_to.dtype}, not {tuple(head.shape)} {wide}"
        )
