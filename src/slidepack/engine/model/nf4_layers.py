"""Decoder layers whose linears are held in 4 bits, and widened one layer at a time for a pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, overload

import torch
from torch import Tensor

from slidepack.engine.model.layers import LayerWeights, layer_over
from slidepack.engine.shape import ModelShape
from slidepack.kernels import dequantise_nf4, quantise_nf4

__all__ = ["Nf4Layers"]

_LINEARS: Final = ("qkv", "o", "gate_up", "down")
_SMALL: Final = (
    "input_norm",
    "post_norm",
    "qkv_bias",
    "q_norm",
    "k_norm",
    "pre_ffn_norm",
    "post_ffn_norm",
)


@dataclass(frozen=True, slots=True)
class _Layer:
    packed: dict[str, tuple[Tensor, Tensor]]
    """Codes and scales of each linear."""
    weights: LayerWeights
    """Its linears are views of the room that all layers share; norms and biases are its own."""


class Nf4Layers(Sequence[LayerWeights]):
    """A model's layers; the linears of one are there at a time.

    A layer is valid until another one is asked for: a pass that needs it later asks again.
    """

    def __init__(self, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> None:
        """Begin without layers.

        Args:
            shape: sizes.
            device: where they are kept, and widened.
            dtype: that they are widened to.
        """
        self._shape = shape
        self._room = torch.empty(shape.layer_params, dtype=dtype, device=device)
        self._views = layer_over(self._room, shape)
        self._layers: list[_Layer] = []
        self._widened = -1

    def room(self, elements: int) -> Tensor:
        """Return memory for the next layer's weights, which `keep` then takes."""
        assert elements == self._room.numel()
        self._widened = -1
        return self._room

    def keep(self, layer: LayerWeights) -> None:
        """Quantise a layer that was written to the room."""
        own: dict[str, Any] = {}
        for name in _SMALL:
            tensor = getattr(layer, name)
            own[name] = None if tensor is None else tensor.clone()
        packed = {name: quantise_nf4(getattr(layer, name)) for name in _LINEARS}
        self._layers.append(_Layer(packed, replace(self._views, **own)))

    def refetch(self, index: int, group: str) -> Tensor:
        """Return the weight of a layer's group of linears, in a backward pass."""
        weight: Tensor = getattr(self[index], group)
        return weight

    @property
    def num_bytes(self) -> int:
        """Memory that the layers take, with the room."""
        total = self._room.nbytes
        for layer in self._layers:
            total += sum(codes.nbytes + scales.nbytes for codes, scales in layer.packed.values())
            small = (getattr(layer.weights, name) for name in _SMALL)
            total += sum(tensor.nbytes for tensor in small if tensor is not None)
        return total

    def __len__(self) -> int:
        """Return how many layers there are."""
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        """Return a layer, widened; refuse a slice: one is there at a time."""
        if isinstance(index, slice):
            raise TypeError(f"layers are widened one at a time, not {index}")
        layer = self._layers[index]
        if self._widened != index:
            for name, (codes, scales) in layer.packed.items():
                out = getattr(layer.weights, name)
                dequantise_nf4(codes, scales, tuple(out.shape), out.dtype, out=out)
            self._widened = index
        return layer.weights

    def __iter__(self) -> Iterator[LayerWeights]:
        """Yield the layers in order; each is valid until the next one is asked for."""
        for index in range(len(self)):
            yield self[index]
