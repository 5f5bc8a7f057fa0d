"""Weights that do not slide: every layer stays where the passes read it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slidepack.engine.sliding.streams import Lane

__all__ = ["ResidentWeights"]


class ResidentWeights:
    """The same calls as `WeightRing`, without a copy."""

    def __init__(
        self,
        flats: Sequence[Tensor],
        compute: Lane,
        await_unit: Callable[[int], torch.cuda.Event | None],
        on_host: Callable[[int], Tensor | None],
    ) -> None:
        """Bind the layers.

        Args:
            flats: each layer's weights.
            compute: the lane that reads them.
            await_unit: waits for a layer's update.
            on_host: returns the host's copy of a layer that the CPU updated last for a card; None
                where the weights here were renewed in place. Asked once an update is done.
        """
        self.flats = tuple(flats)
        self._compute = compute
        self._await_unit = await_unit
        self._on_host = on_host
        self._changed: set[int] = set()

    def prefetch(self, layer: int) -> None:
        """Do nothing: the layer is there."""

    def acquire(self, layer: int) -> Tensor:
        """Return a layer's weights, once their update is done."""
        self._compute.wait(self._await_unit(layer))
        source = self._on_host(layer) if layer in self._changed else None
        self._changed.discard(layer)
        if source is not None:
            with self._compute.on():
                self.flats[layer].copy_(source, non_blocking=True)
        return self.flats[layer]

    def release(self, layer: int) -> None:
        """Do nothing: the layer stays."""

    def forget(self, layer: int) -> None:
        """Note that the layer changes."""
        self._changed.add(layer)

    def resident(self, layer: int) -> Tensor | None:
        """Return what the card's engine renews: nothing where the master itself is read."""
        flat = self.flats[layer]
        return flat if flat.is_cuda else None
