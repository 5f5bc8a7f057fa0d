"""A decoder's layers for a pass without gradients, brought to the card one after the other."""

from collections.abc import Iterator, Sequence
from typing import overload

from slidepack.engine.model.layers import LayerWeights, layer_over
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.weight_ring import Weights

__all__ = ["SlidingLayers"]


class SlidingLayers(Sequence[LayerWeights]):
    """A decoder's layers, each brought to the card as it is asked for."""

    def __init__(self, weights: Weights, shape: ModelShape, prefetch: int) -> None:
        """Bind the window.

        Args:
            weights: where a layer's weights come from.
            shape: sizes.
            prefetch: layers fetched ahead.
        """
        self._weights = weights
        self._shape = shape
        self._prefetch = prefetch

    def __len__(self) -> int:
        """Return how many layers there are."""
        return self._shape.num_layers

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        """Refuse: only a walk in order knows when a layer is no longer read."""
        raise TypeError(f"sliding layers are walked in order, not indexed by {index}")

    def __iter__(self) -> Iterator[LayerWeights]:
        """Yield the layers in order; each is valid until the next one is asked for."""
        for index in range(len(self)):
            view = self._view(index)
            try:
                yield view
            finally:
                # The pass over this layer was launched when the next one is asked for; where it
                # was abandoned, nothing else would let go of the slot.
                self._weights.release(index)

    def _view(self, index: int) -> LayerWeights:
        flat = self._weights.acquire(index)
        for ahead in range(1, self._prefetch + 1):
            self._weights.prefetch((index + ahead) % len(self))
        return layer_over(flat, self._shape)
