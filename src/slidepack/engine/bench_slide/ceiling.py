"""The ceiling: the same walk over resident layers, without optimizer and without transfers."""

from collections.abc import Sequence

import torch

from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.ends import TrainedEnds
from slidepack.engine.sliding.full_driver import FullDriver, Window
from slidepack.engine.sliding.optimizer import AsyncOptimizer
from slidepack.engine.sliding.resident_weights import ResidentWeights
from slidepack.engine.sliding.rows import DeviceRows, HostRows, Rows
from slidepack.engine.sliding.sharing import FixedSharing
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Updates

__all__ = ["Ceiling"]


class Ceiling:
    """A walk over as many resident layers as fit, which the others share.

    Its steps are a rehearsal of `optimizer`: gradients are made and let go.
    """

    def __init__(
        self,
        shape: ModelShape,
        state: TrainState,
        device: torch.device,
        *,
        layers: int,
        rows: HostRows | None,
        streams: Streams,
        accumulate: bool,
    ) -> None:
        """Copy the weights to the card.

        Args:
            shape: sizes.
            state: whose weights are read; they do not change.
            device: where the passes run.
            layers: how many layers are resident.
            rows: where rows are kept in host memory; None keeps them on the card.
            streams: of the run.
            accumulate: whether a step has several micro-batches.
        """
        units, dtype = len(state.units), state.form.compute_dtype
        updates = Updates(units)
        optimizer = AsyncOptimizer(
            updates=updates,
            streams=streams,
            engines={},
            sharing=FixedSharing(["gpu"] * units),
            host_slots=None,
            waiting=None,
        )
        flats = [state.weights(layer).to(device, copy=True) for layer in range(layers)]
        wide = accumulate and dtype != torch.float32
        self._rows = rows
        window = Window(
            weights=ResidentWeights(
                [flats[layer % layers] for layer in range(shape.num_layers)],
                streams.compute,
                updates.await_unit,
                lambda _: None,
            ),
            grads=SlotPool(
                [torch.empty(shape.layer_params, dtype=dtype, device=device)], updates.check
            ),
            wide_grad=torch.empty(shape.layer_params, dtype=torch.float32, device=device)
            if wide
            else None,
            ends=TrainedEnds(shape, state, streams, updates, optimizer, device),
            optimizer=optimizer,
            updates=updates,
            streams=streams,
            prefetch=1,
        )
        self.optimizer = optimizer
        self.driver = FullDriver(
            shape, window, layer_attention(shape, device, dtype), self._begin_rows
        )

    def _begin_rows(self, batches: Sequence[PackedBatch]) -> Rows:
        if self._rows is None:
            return DeviceRows()
        return self._rows.begin([batch.num_tokens for batch in batches])
