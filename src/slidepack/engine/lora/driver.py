"""Runs rows of many lanes through a frozen decoder, forward and backward.

The layers are walked one by one, backward by `torch.autograd` on one layer at a time. What a layer
needs for its backward pass is kept or recomputed, as the plan says layer by layer; both give the
same bits. Each micro-batch passes both ways before the next one begins: memory follows from the
largest micro-batch, not from the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.lanes import LanePass
from slidepack.engine.lora.rows import LaneRow
from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.decoder import decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.kernels import attention, linear_cross_entropy

__all__ = ["LaneDriver", "lane_sums"]


@dataclass(slots=True)
class _Kept:
    """A layer's input and, where it was kept, its output with the graph between them."""

    x: Tensor
    y: Tensor | None


class LaneDriver:
    """Passes over a frozen decoder."""

    def __init__(
        self,
        decoder: Decoder,
        choices: LayerAttention,
        activations: Sequence[ActivationPolicy],
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind model and policy.

        Args:
            decoder: the frozen base.
            choices: what each layer's attention computes, and by which path.
            activations: `keep` or `recompute` for each layer.
            check_stop: called before each layer of each pass; may raise to abandon it. Lanes only
                change in their optimizer step, so nothing is lost.

        Raises:
            ValueError: the policy does not cover the layers, or asks for what is not there.
        """
        if len(activations) != decoder.shape.num_layers:
            raise ValueError(
                f"{len(activations)} activation policies for {decoder.shape.num_layers} layers"
            )
        unknown = set(activations) - {"keep", "recompute"}
        if unknown:
            raise ValueError(f"activation policy {sorted(unknown)} is not one of keep, recompute")
        self._decoder = decoder
        self._choices = choices
        self._activations = tuple(activations)
        self._check_stop = check_stop

    def train(self, row: LaneRow, lanes: LanePass) -> Tensor:
        """Run a row forward and backward; the lanes' gradients are written to their pool.

        Returns:
            [N] fp64: each lane's weighted loss of the row, on the device.
        """
        batch = row.batch
        x = self._embed(batch)
        kept: list[_Kept] = []
        for layer in range(len(self._decoder.layers)):
            entry = self._forward_kept(layer, x, batch, lanes)
            assert entry.y is not None
            x = entry.y.detach()
            if self._activations[layer] == "recompute":
                entry.y = None
            kept.append(entry)
        losses, grad = self._head(x, row)
        del x
        for layer in reversed(range(len(self._decoder.layers))):
            entry = kept.pop()
            self._check_stop()
            y = entry.y if entry.y is not None else self._layer(layer, entry.x, batch, lanes)
            torch.autograd.backward(y, grad)
            # The embedding below layer 0 is frozen, so nothing asks for that gradient.
            if layer:
                assert entry.x.grad is not None
                grad = entry.x.grad
        return losses

    @torch.no_grad()
    def evaluate(self, row: LaneRow, lanes: LanePass) -> Tensor:
        """Return the lanes' weighted losses, [N] fp64, without gradients."""
        x = self.hidden_states(row.batch, lanes)
        head = linear_cross_entropy(
            self._final(x[row.batch.predicting]),
            self._decoder.head,
            row.batch.labels,
            weights_S=row.weights,
            soft_cap=self._decoder.shape.final_soft_cap,
            hidden_grad=False,
            none_ignored=True,
        )
        return lane_sums(head.losses, row.label_counts)

    @torch.no_grad()
    def hidden_states(self, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        """Return the output of the last layer, [T, D], before the final norm.

        Args:
            batch: of the lanes.
            lanes: None for the bare base.
        """
        x = self._embed(batch)
        for layer in range(len(self._decoder.layers)):
            self._check_stop()
            x = self._layer(layer, x, batch, lanes)
        return x

    @torch.no_grad()
    def logits(self, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        """Return the logits of every position, [T, V]; for tests and samples, not for training."""
        hidden = self._final(self.hidden_states(batch, lanes))
        return head_logits(hidden, self._decoder.head, self._decoder.shape)

    def _embed(self, batch: PackedBatch) -> Tensor:
        return embed(self._decoder.embedding, batch.ids, self._decoder.shape)

    def _final(self, x: Tensor) -> Tensor:
        return final_hidden(x, self._decoder.final_norm, self._decoder.shape)

    def _layer(self, layer: int, x: Tensor, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        choice = self._choices.at(layer)
        return decoder_layer(
            x,
            self._decoder.layers[layer],
            self._decoder.shape,
            batch.rope.of_window(choice.window),
            lambda q, k, v: attention(q, k, v, batch.segments, choice),
            None if lanes is None else lanes.layer(layer),
        )

    def _forward_kept(self, layer: int, x: Tensor, batch: PackedBatch, lanes: LanePass) -> _Kept:
        self._check_stop()
        leaf = x.detach().requires_grad_(layer > 0)
        with torch.set_grad_enabled(self._activations[layer] == "keep"):
            return _Kept(leaf, self._layer(layer, leaf, batch, lanes))

    def _head(self, x: Tensor, row: LaneRow) -> tuple[Tensor, Tensor]:
        """Return the lanes' losses, and the gradient of the last layer's output."""
        # Only positions that predict a supervised token reach the head.
        leaf = x[row.batch.predicting].requires_grad_()
        with torch.enable_grad():
            normed = self._final(leaf)
        head = linear_cross_entropy(
            normed.detach(),
            self._decoder.head,
            row.batch.labels,
            weights_S=row.weights,
            soft_cap=self._decoder.shape.final_soft_cap,
            none_ignored=True,
        )
        torch.autograd.backward(normed, head.hidden_grad)
        assert leaf.grad is not None
        grad = torch.zeros_like(x).index_copy_(0, row.batch.predicting, leaf.grad)
        return lane_sums(head.losses, row.label_counts), grad


def lane_sums(losses: Tensor, counts: Tensor) -> Tensor:
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
