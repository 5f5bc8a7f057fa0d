"""Losses of a row of many lanes, and their gradient, from the last layer's output."""

import torch
from torch import Tensor

from slidepack.engine.lora.rows import LaneRow
from slidepack.engine.model.ends import final_hidden
from slidepack.engine.model.layers import Decoder
from slidepack.kernels import linear_cross_entropy

__all__ = ["lane_losses", "train_head"]


def train_head(x: Tensor, row: LaneRow, decoder: Decoder) -> tuple[Tensor, Tensor]:
    """Return the lanes' losses, and the gradient of the last layer's output.

    Args:
        x: [T, D], the last layer's output.
        row: of the lanes.
        decoder: with the final norm and the head.

    Returns:
        [N] fp64, each lane's weighted loss; and [T, D].
    """
    # Only positions that predict a supervised token reach the head.
    leaf = x[row.batch.predicting].requires_grad_()
    with torch.enable_grad():
        normed = final_hidden(leaf, decoder.final_norm, decoder.shape)
    head = linear_cross_entropy(
        normed.detach(),
        decoder.head,
        row.batch.labels,
        weights_S=row.weights,
        soft_cap=decoder.shape.final_soft_cap,
        none_ignored=True,
    )
    torch.autograd.backward(normed, head.hidden_grad)
    assert leaf.grad is not None
    return _lane_sums(head.losses, row.label_counts), _landed(leaf.grad, x, row)


def _landed(grad: Tensor, x: Tensor, row: LaneRow) -> Tensor:
    """Return the gradient of `x` from that of the positions that predict."""
    if row.landing is None:
        return torch.zeros_like(x).index_copy_(0, row.batch.predicting, grad)
    # One row more takes the padding.
    return x.new_zeros((x.shape[0] + 1, x.shape[1])).index_copy_(0, row.landing, grad)[:-1]


@torch.no_grad()
def lane_losses(x: Tensor, row: LaneRow, decoder: Decoder) -> Tensor:
    """Return the lanes' weighted losses, [N] fp64, without a gradient.

    Args:
        x: [T, D], the last layer's output.
        row: of the lanes.
        decoder: with the final norm and the head.
    """
    head = linear_cross_entropy(
        final_hidden(x[row.batch.predicting], decoder.final_norm, decoder.shape),
        decoder.head,
        row.batch.labels,
        weights_S=row.weights,
        soft_cap=decoder.shape.final_soft_cap,
        hidden_grad=False,
        none_ignored=True,
    )
    return _lane_sums(head.losses, row.label_counts)


def _lane_sums(losses: Tensor, counts: Tensor) -> Tensor:
    """Return each lane's sum, in an order that depends on its own tokens alone.

    Args:
        losses: [S], lane after lane; what is beyond the counts is left out.
        counts: [N] int64.
    """
    # One segment more takes the padding.
    rest = losses.numel() - counts.sum(0, keepdim=True)
    return torch.segment_reduce(
        losses.double(), "sum", lengths=torch.cat([counts, rest]), unsafe=True, initial=0.0
    )[:-1]
