"""Full fine-tuning with a window of layers on the card.

Each step walks the layers: forward for every micro-batch of layer i, then layer i + 1; backward the
same way down, one layer at a time by `torch.autograd`, recomputing it from its kept input. Each
layer's micro-batches pass in the opposite order of the layer's before (see `walk`). Weights
slide through a ring of slots, rows between the layers stay on the card or in host memory, and each
layer's gradient goes to the optimizer while the layers below are still at work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.ends import embed, embedding_scale, final_hidden
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import LayerWeights, layer_over
from slidepack.engine.model.loss import LossSum
from slidepack.engine.model.packed_layer import packed_layer
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.ends import TrainedEnds
from slidepack.engine.sliding.leaves import layer_leaves
from slidepack.engine.sliding.optimizer import AsyncOptimizer
from slidepack.engine.sliding.rows import GRADIENT, Rows
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import StepSettings, Updates
from slidepack.engine.sliding.walk import fetch_down, fetch_up, snake, turns
from slidepack.engine.sliding.weight_ring import Weights
from slidepack.kernels import Readback, linear_cross_entropy, squared_norm

__all__ = ["FullDriver", "StepResult", "Window"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step measured."""

    loss: LossSum
    grad_norm: float
    """Global norm of the mean loss's gradient, before clipping."""
    applied: bool
    """False where the norm was no number and the weights were left as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What the walk needs of the sliding machinery."""

    weights: Weights
    grads: SlotPool
    """Slots of one layer's gradient on the card, in the dtype of the weights."""
    wide_grad: Tensor | None
    """[layer parameters] fp32, where several micro-batches are added up; None in fp32."""
    ends: TrainedEnds
    optimizer: AsyncOptimizer
    updates: Updates
    streams: Streams
    prefetch: int
    """Layers fetched ahead."""


class FullDriver:
    """Runs the steps of a full fine-tuning."""

    def __init__(
        self,
        shape: ModelShape,
        window: Window,
        choices: LayerAttention,
        rows: Callable[[Sequence[PackedBatch]], Rows],
        check_stop: Callable[[], None] = lambda: None,
        passing_rows: Callable[[Sequence[PackedBatch]], Rows] | None = None,
    ) -> None:
        """Bind the model.

        Args:
            shape: sizes.
            window: where weights and gradients are.
            choices: attention of each layer.
            rows: makes the keeper of a step's rows.
            check_stop: called between layers in evaluation, where a pass can be abandoned. A
                training step has changed weights before it ends, so it is finished.
            passing_rows: as `rows`, where no backward pass comes; None makes no difference.
        """
        self._shape = shape
        self.window = window
        self._choices = choices
        self._rows = rows
        self._passing_rows = passing_rows or rows
        self._readback = Readback()
        self._check_stop = check_stop

    def train_step(
        self, batches: Sequence[PackedBatch], settings: StepSettings, clip_norm: float
    ) -> StepResult:
        """Run forward and backward, and start the update of every weight.

        Args:
            batches: the micro-batches of one optimizer step.
            settings: AdamW's numbers, with a clip factor of 1.
            clip_norm: global norm above which the gradient is scaled down; 0 for none. It must be
                0 exactly where the optimizer does not hold gradients back.

        Returns:
            The loss, whose mean over the supervised tokens of all micro-batches is what was
            differentiated, and the gradient's norm.

        Raises:
            ValueError: `clip_norm` does not fit the optimizer.
            BaseException: what an optimizer engine died of.
        """
        window, shape = self.window, self._shape
        if window.optimizer.waits != (clip_norm > 0.0):
            held = "held back" if window.optimizer.waits else "not held back"
            raise ValueError(f"clip_norm is {clip_norm}, and gradients are {held}")
        rows = self._rows(batches)
        window.ends.renew()
        self._forward(batches, rows)
        loss, supervised = self._head(batches, rows)
        squares = [torch.zeros((), dtype=torch.float64, device=loss.device)] * shape.num_layers
        if not shape.tied_head:
            squares.append(window.ends.submit_head(settings, shape.num_layers))
        for layer in reversed(range(shape.num_layers)):
            squares[layer] = self._backward(layer, batches, rows, settings)
        self._embedding_grad(batches, rows)
        squares.append(window.ends.submit_embedding(settings))
        mean, square = self._readback.read(torch.stack([loss, torch.stack(squares).sum()]))
        norm = math.sqrt(square)
        applied = self._start_waiting(norm, clip_norm)
        window.updates.check()
        return StepResult(LossSum(mean * supervised, supervised), norm, applied)

    @torch.no_grad()
    def evaluate(self, batches: Sequence[PackedBatch]) -> LossSum:
        """Return the summed loss of the batches, without gradients."""
        window, shape = self.window, self._shape
        total, tokens = 0.0, 0
        window.ends.renew()
        for batch in batches:
            rows = self._passing_rows([batch])
            self._forward([batch], rows, keep=False)
            x = rows.get((shape.num_layers, 0))
            hidden = final_hidden(x[batch.predicting], window.ends.final_norm, shape)
            head = linear_cross_entropy(
                hidden,
                window.ends.head,
                batch.labels,
                soft_cap=shape.final_soft_cap,
                hidden_grad=False,
                none_ignored=True,
            )
            total += self._readback.read(head.losses.sum(dtype=torch.float64)[None])[0]
            tokens += batch.labels.numel()
        return LossSum(total, tokens)

    @torch.no_grad()
    def _forward(self, batches: Sequence[PackedBatch], rows: Rows, *, keep: bool = True) -> None:
        window, shape = self.window, self._shape
        count = len(batches)
        for micro in snake(-1, count):
            rows.put((0, micro), embed(window.ends.embedding, batches[micro].ids, shape))
        for layer in range(shape.num_layers):
            flat = window.weights.acquire(layer)
            for ahead in range(1, window.prefetch + 1):
                if layer + ahead < shape.num_layers:
                    window.weights.prefetch(layer + ahead)
            weights = layer_over(flat, shape)
            for turn in turns(snake(layer, count), snake(layer + 1, count)):
                micro = turn.micro
                x = rows.get((layer, micro))
                fetch_up(rows, layer, turn.ahead)
                y = self._layer(layer, x, weights, batches[micro])
                if keep:
                    rows.rest((layer, micro))
                else:
                    rows.drop((layer, micro))
                rows.put((layer + 1, micro), y)
            window.weights.release(layer)
            if not keep:
                self._check_stop()

    def _layer(self, layer: int, x: Tensor, weights: LayerWeights, batch: PackedBatch) -> Tensor:
        return packed_layer(x, weights, self._shape, batch, self._choices.at(layer))

    def _head(self, batches: Sequence[PackedBatch], rows: Rows) -> tuple[Tensor, int]:
        """Return the step's mean loss; put the last layer's gradient in the rows."""
        window, shape = self.window, self._shape
        ends, top, count = window.ends, shape.num_layers, len(batches)
        supervised = sum(batch.labels.numel() for batch in batches)
        ends.begin_grads()
        losses = []
        for turn in turns(snake(top, count), snake(top - 1, count)):
            micro, batch = turn.micro, batches[turn.micro]
            x = rows.get((top, micro))
            fetch_down(rows, top, turn.ahead, is_head=True)
            leaf = x[batch.predicting].requires_grad_()
            norm = ends.final_norm.detach().requires_grad_()
            with torch.enable_grad():
                normed = final_hidden(leaf, norm, shape)
            weights = torch.full(
                batch.labels.shape, 1.0 / supervised, dtype=torch.float32, device=x.device
            )
            head = linear_cross_entropy(
                normed.detach(),
                ends.head,
                batch.labels,
                weights_S=weights,
                soft_cap=shape.final_soft_cap,
                head_grad=True,
                none_ignored=True,
                add_to=ends.head_grad,
            )
            losses.append(head.losses.sum(dtype=torch.float64))
            torch.autograd.backward(normed, head.hidden_grad)
            assert leaf.grad is not None
            assert norm.grad is not None
            ends.add_norm_grad(norm.grad)
            grad = torch.zeros_like(x).index_copy_(0, batch.predicting, leaf.grad)
            rows.drop((top, micro))
            rows.put((GRADIENT, micro), grad)
        return torch.stack(losses).sum(), supervised

    def _backward(
        self, layer: int, batches: Sequence[PackedBatch], rows: Rows, settings: StepSettings
    ) -> Tensor:
        """Differentiate one layer and hand its gradient over; return the squared norm."""
        window, shape = self.window, self._shape
        flat = window.weights.acquire(layer)
        for ahead in range(1, window.prefetch + 1):
            if layer - ahead >= 0:
                window.weights.prefetch(layer - ahead)
        grad, give_back = window.grads.acquire(window.streams.compute)
        grad.zero_()
        weights, count = layer_leaves(flat, grad, shape), len(batches)
        adding = window.wide_grad is not None and count > 1
        for turn in turns(snake(layer, count), snake(layer - 1, count)):
            micro = turn.micro
            x = rows.get((layer, micro)).detach().requires_grad_()
            dy = rows.get((GRADIENT, micro))
            fetch_down(rows, layer, turn.ahead)
            y = self._layer(layer, x, weights, batches[micro])
            torch.autograd.backward(y, dy)
            assert x.grad is not None
            rows.drop((GRADIENT, micro))
            rows.drop((layer, micro))
            rows.put((GRADIENT, micro), x.grad)
            if adding:
                self._add_up(grad, first=turn.first, last=turn.last)
        square = squared_norm(grad).double()
        window.weights.release(layer)
        window.optimizer.submit(
            layer, layer, grad, settings, give_back, window.weights.resident(layer)
        )
        window.weights.forget(layer)
        return square

    def _add_up(self, grad: Tensor, *, first: bool, last: bool) -> None:
        """Add a micro-batch's gradient in fp32; leave the sum, rounded once, at the end."""
        wide = self.window.wide_grad
        assert wide is not None
        if first:
            wide.copy_(grad)
        else:
            wide.add_(grad)
        if last:
            grad.copy_(wide)
        else:
            grad.zero_()

    def _embedding_grad(self, batches: Sequence[PackedBatch], rows: Rows) -> None:
        ends = self.window.ends
        scale = embedding_scale(self._shape, ends.embedding.dtype)
        for turn in turns(snake(-1, len(batches))):
            grad = rows.get((GRADIENT, turn.micro))
            fetch_down(rows, -1, turn.ahead)
            ends.add_embedding_grad(batches[turn.micro].ids, grad, scale)
            rows.drop((GRADIENT, turn.micro))

    def _start_waiting(self, norm: float, clip_norm: float) -> bool:
        """Start the updates that waited for the norm; return whether there are any."""
        if clip_norm <= 0.0:
            return True
        if not math.isfinite(norm):
            self.window.optimizer.skip()
            return False
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 too; parity with it is a test.
        self.window.optimizer.release(torch.tensor(min(1.0, clip_norm / (norm + 1e-6))))
        return True
