"""The ends of a trained model: embedding, final norm and head, with buffers of their own."""

from typing import Final

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.optimizer import AsyncOptimizer
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.tier_layout import TIER_CHUNK
from slidepack.engine.sliding.updates import StepSettings, Updates
from slidepack.kernels import squared_norm

__all__ = ["TrainedEnds"]

_FIRST: Final = -1
"""Priority of the embedding, which the next forward pass needs before layer 0."""


class TrainedEnds:
    """Weights of the ends on the card, and their gradients in fp32."""

    def __init__(
        self,
        shape: ModelShape,
        state: TrainState,
        streams: Streams,
        updates: Updates,
        optimizer: AsyncOptimizer,
        device: torch.device,
    ) -> None:
        """Allocate weights and gradients, and fill the weights.

        Args:
            shape: sizes.
            state: master weights; its last one or two units are the ends.
            streams: of the run.
            updates: shared with the engines.
            optimizer: takes the gradients; the card's engine renews the weights here by itself.
            device: where the passes run. On a CPU the weights are the master's own memory, unless
                that is on a drive.
        """
        self._shape = shape
        self._state = state
        self._streams = streams
        self._updates = updates
        self._optimizer = optimizer
        self._units = tuple(range(shape.num_layers, len(state.units)))
        self._on_card = device.type != "cpu"
        self._changed: set[int] = set()
        self._weights = {
            unit: _copy(state, unit, device)
            if self._on_card or state.master_on_tier(unit)
            else state.weights(unit)
            for unit in self._units
        }
        self._grads = {
            unit: torch.zeros(state.units[unit].elements, dtype=torch.float32, device=device)
            for unit in self._units
        }
        # Appended to by the engines' threads.
        self._read_until: dict[int, list[torch.cuda.Event | None]] = {
            unit: [] for unit in self._units
        }

    @property
    def embedding(self) -> Tensor:
        """[V, D]"""
        return self._table(self._weights[self._units[0]])

    @property
    def head(self) -> Tensor:
        """[V, D]; the embedding where it is tied."""
        return self._table(self._weights[self._units[-1]])

    @property
    def final_norm(self) -> Tensor:
        """[D]"""
        return self._weights[self._units[-1]][-self._shape.hidden :]

    @property
    def head_grad(self) -> Tensor:
        """[V, D] fp32, to be added to."""
        return self._table(self._grads[self._units[-1]])

    def renew(self) -> None:
        """Wait for the last step's updates of the ends; bring what the CPU updated to the card."""
        compute, h2d = self._streams.compute, self._streams.h2d
        for unit in self._units:
            compute.wait(self._updates.await_unit(unit))
            part = self._optimizer.on_host(unit) if unit in self._changed else slice(0, 0)
            if self._on_card and self._weights[unit][part].numel():
                # Among the layers' weights: in a lane of its own it would share the link with them.
                h2d.wait(compute.mark())
                with h2d.on():
                    source = self._state.weights(unit)[part]
                    self._weights[unit][part].copy_(source, non_blocking=True)
                compute.wait(h2d.mark())
        self._changed.clear()

    def begin_grads(self) -> None:
        """Zero the gradients, once nothing reads the last step's."""
        for unit in self._units:
            for event in self._read_until[unit]:
                self._streams.compute.wait(event)
            self._read_until[unit].clear()
            self._grads[unit].zero_()

    def add_norm_grad(self, grad: Tensor) -> None:
        """Add to the final norm's gradient."""
        self._grads[self._units[-1]][-self._shape.hidden :].add_(grad)

    def add_embedding_grad(self, ids: Tensor, grad: Tensor, scale: float) -> None:
        """Add rows' gradients to those of their tokens, in an order that is always the same.

        Args:
            ids: [T] int64.
            grad: [T, D] of the first layer's input.
            scale: by which the embedding's rows were multiplied.
        """
        table = self._table(self._grads[self._units[0]])
        wide = grad.to(table.dtype)
        if scale != 1.0:
            wide = wide * scale
        if table.is_cuda:
            # index_add_ adds by atomics; this one sorts first.
            table.index_put_((ids,), wide, accumulate=True)
        else:
            table.index_add_(0, ids, wide)

    def submit_head(self, settings: StepSettings, priority: int) -> Tensor:
        """Hand over the gradient of a head of its own; return its squared norm."""
        return self._submit(self._units[-1], priority, settings)

    def submit_embedding(self, settings: StepSettings) -> Tensor:
        """Hand over the embedding's gradient; return its squared norm."""
        return self._submit(self._units[0], _FIRST, settings)

    def _submit(self, unit: int, priority: int, settings: StepSettings) -> Tensor:
        grad = self._grads[unit]
        square = squared_norm(grad).double()
        self._changed.add(unit)
        apart = self._on_card or self._state.master_on_tier(unit)
        resident = self._weights[unit] if apart else None
        self._optimizer.submit(
            unit, priority, grad, settings, self._read_until[unit].append, resident
        )
        return square

    def _table(self, flat: Tensor) -> Tensor:
        vocab, hidden = self._shape.vocab, self._shape.hidden
        return flat[: vocab * hidden].view(vocab, hidden)


def _copy(state: TrainState, unit: int, device: torch.device) -> Tensor:
    """Return a unit's weights on a device, brought there a piece at a time."""
    elements = state.units[unit].elements
    found = torch.empty(elements, dtype=state.form.compute_dtype, device=device)
    for start in range(0, elements, TIER_CHUNK):
        stop = min(start + TIER_CHUNK, elements)
        found[start:stop].copy_(state.weights(unit, start, stop))
    return found
