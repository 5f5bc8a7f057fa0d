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
from slidepack.engine.lora.head import lane_losses, train_head
from slidepack.engine.lora.lanes import LanePass
from slidepack.engine.lora.rows import LaneRow
from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.packed_layer import packed_layer

__all__ = ["LaneDriver"]


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
        self.check_stop = check_stop

    @property
    def can_be_recorded(self) -> bool:
        """Whether the launches of a pass depend on nothing but the sizes of its row."""
        return self._choices.path == "varlen"

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
        losses, grad = train_head(x, row, self._decoder)
        del x
        for layer in reversed(range(len(self._decoder.layers))):
            entry = kept.pop()
            self.check_stop()
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
        return lane_losses(self.hidden_states(row.batch, lanes), row, self._decoder)

    @torch.no_grad()
    def hidden_states(self, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        """Return the output of the last layer, [T, D], before the final norm.

        Args:
            batch: of the lanes.
            lanes: None for the bare base.
        """
        x = self._embed(batch)
        for layer in range(len(self._decoder.layers)):
            self.check_stop()
            x = self._layer(layer, x, batch, lanes)
        return x

    @torch.no_grad()
    def logits(self, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        """Return the logits of every position, [T, V]; for tests and samples, not for training."""
        decoder, x = self._decoder, self.hidden_states(batch, lanes)
        hidden = final_hidden(x, decoder.final_norm, decoder.shape)
        return head_logits(hidden, decoder.head, decoder.shape)

    def _embed(self, batch: PackedBatch) -> Tensor:
        return embed(self._decoder.embedding, batch.ids, self._decoder.shape)

    def _layer(self, layer: int, x: Tensor, batch: PackedBatch, lanes: LanePass | None) -> Tensor:
        return packed_layer(
            x,
            self._decoder.layers[layer],
            self._decoder.shape,
            batch,
            self._choices.at(layer),
            None if lanes is None else lanes.layer(layer),
        )

    def _forward_kept(self, layer: int, x: Tensor, batch: PackedBatch, lanes: LanePass) -> _Kept:
        self.check_stop()
        leaf = x.detach().requires_grad_(layer > 0)
        with torch.set_grad_enabled(self._activations[layer] == "keep"):
            return _Kept(leaf, self._layer(layer, leaf, batch, lanes))
