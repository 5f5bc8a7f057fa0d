"""The driver: walks the layers explicitly, layer by layer, over all micro-batches of a step.

Forward: every micro-batch through layer i, then layer i + 1. Backward the same way down, with
`torch.autograd` on one layer at a time. So parameter traffic does not depend on the batch, and
gradient accumulation is exact. What a layer needs for its backward pass is kept or recomputed, as
the plan says layer by layer; both give the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.arena import LaneLayer, LoraArena
from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.decoder import decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.kernels import attention, linear_cross_entropy


@dataclass(frozen=True, slots=True)
class LossSum:
    """Losses of some tokens, added up."""

    total: float
    """Sum over supervised tokens, in nats."""
    tokens: int
    """Supervised tokens."""

    @property
    def mean(self) -> float:
        """Mean loss of a supervised token."""
        return self.total / self.tokens


@dataclass(slots=True)
class _Kept:
    """A layer's input and, where it was kept, its output with the graph between them."""

    x: Tensor
    y: Tensor | None


class Driver:
    """Runs forward and backward passes of one lane over a frozen decoder."""

    def __init__(
        self,
        decoder: Decoder,
        arena: LoraArena | None,
        choices: LayerAttention,
        activations: Sequence[ActivationPolicy],
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind model, lane and policy.

        Args:
            decoder: the frozen base.
            arena: the lane, or None for the bare base.
            choices: what each layer's attention computes, and by which path.
            activations: `keep` or `recompute` for each layer.
            check_stop: called before each layer of each micro-batch; may raise to abandon a pass.
                The lane's parameters only change in its optimizer step, so nothing is lost.

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
        self._arena = arena
        self._choices = choices
        self._activations = tuple(activations)
        self._check_stop = check_stop

    def train_step(self, batches: Sequence[PackedBatch], dropout_key: tuple[int, ...]) -> LossSum:
        """Run forward and backward; the gradient of the mean loss is added to the lane's arena.

        Args:
            batches: the micro-batches of one optimizer step.
            dropout_key: (seed, step).

        Returns:
            The summed loss of the step. The gradient is that of its mean over the supervised
            tokens of all micro-batches.
        """
        hidden = [self._embed(batch) for batch in batches]
        kept: list[list[_Kept]] = []
        for layer in range(len(self._decoder.layers)):
            kept.append(
                [
                    self._forward_kept(layer, x, batch, (*dropout_key, micro))
                    for micro, (x, batch) in enumerate(zip(hidden, batches, strict=True))
                ]
            )
            hidden = [self._output(entry) for entry in kept[-1]]
            self._drop_recomputed(layer, kept[-1])
        loss, grads = self._head(hidden, batches)
        del hidden
        for layer in reversed(range(len(self._decoder.layers))):
            entries = kept.pop()
            for micro, (entry, batch) in enumerate(zip(entries, batches, strict=True)):
                key = (*dropout_key, micro)
                y = entry.y if entry.y is not None else self._layer(layer, entry.x, batch, key)
                self._check_stop()
                torch.autograd.backward(y, grads[micro])
                entry.y = None
                # The embedding below layer 0 is frozen, so nothing asks for that gradient.
                if layer:
                    assert entry.x.grad is not None
                    grads[micro] = entry.x.grad
        return loss

    @torch.no_grad()
    def evaluate(self, batches: Sequence[PackedBatch]) -> LossSum:
        """Return the summed loss of the batches, without gradients or dropout."""
        total = 0.0
        tokens = 0
        for batch in batches:
            x = self.hidden_states(batch)
            head = linear_cross_entropy(
                self._final(x[batch.predicting]),
                self._decoder.head,
                batch.labels,
                soft_cap=self._decoder.shape.final_soft_cap,
                hidden_grad=False,
                none_ignored=True,
            )
            total += float(head.losses.sum(dtype=torch.float64))
            tokens += batch.labels.numel()
        return LossSum(total, tokens)

    @torch.no_grad()
    def hidden_states(self, batch: PackedBatch) -> Tensor:
        """Return the output of the last layer, [T, D], before the final norm."""
        x = self._embed(batch)
        for layer in range(len(self._decoder.layers)):
            x = self._layer(layer, x, batch, None)
        return x

    @torch.no_grad()
    def logits(self, batch: PackedBatch) -> Tensor:
        """Return the logits of every position, [T, V]; for tests and samples, not for training."""
        hidden = self._final(self.hidden_states(batch))
        return head_logits(hidden, self._decoder.head, self._decoder.shape)

    def _embed(self, batch: PackedBatch) -> Tensor:
        return embed(self._decoder.embedding, batch.ids, self._decoder.shape)

    def _final(self, x: Tensor) -> Tensor:
        return final_hidden(x, self._decoder.final_norm, self._decoder.shape)

    def _layer(
        self, layer: int, x: Tensor, batch: PackedBatch, dropout_key: tuple[int, ...] | None
    ) -> Tensor:
        self._check_stop()
        lane = None if self._arena is None else LaneLayer(self._arena, layer, dropout_key)
        choice = self._choices.at(layer)
        return decoder_layer(
            x,
            self._decoder.layers[layer],
            self._decoder.shape,
            batch.rope.of_window(choice.window),
            lambda q, k, v: attention(q, k, v, batch.segments, choice),
            lane,
        )

    def _forward_kept(
        self, layer: int, x: Tensor, batch: PackedBatch, dropout_key: tuple[int, ...]
    ) -> _Kept:
        leaf = x.detach().requires_grad_(layer > 0)
        keep = self._activations[layer] == "keep"
        with torch.set_grad_enabled(keep):
            return _Kept(leaf, self._layer(layer, leaf, batch, dropout_key))

    @staticmethod
    def _output(entry: _Kept) -> Tensor:
        assert entry.y is not None
        return entry.y.detach()

    def _drop_recomputed(self, layer: int, entries: list[_Kept]) -> None:
        if self._activations[layer] == "recompute":
            for entry in entries:
                entry.y = None

    def _head(
        self, hidden: Sequence[Tensor], batches: Sequence[PackedBatch]
    ) -> tuple[LossSum, list[Tensor]]:
        """Return the step's loss and, for each micro-batch, the gradient of the last layer."""
        supervised = sum(batch.labels.numel() for batch in batches)
        total = 0.0
        grads = []
        for x, batch in zip(hidden, batches, strict=True):
            # Only positions that predict a supervised token reach the head.
            leaf = x[batch.predicting].requires_grad_()
            with torch.enable_grad():
                normed = self._final(leaf)
            head = linear_cross_entropy(
                normed.detach(),
                self._decoder.head,
                batch.labels,
                soft_cap=self._decoder.shape.final_soft_cap,
                none_ignored=True,
            )
            assert head.hidden_grad is not None
            total += float(head.losses.sum(dtype=torch.float64))
            torch.autograd.backward(normed, head.hidden_grad / supervised)
            assert leaf.grad is not None
            grads.append(torch.zeros_like(x).index_copy_(0, batch.predicting, leaf.grad))
        return LossSum(total, supervised), grads
