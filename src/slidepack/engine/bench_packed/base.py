"""The base that lanes are measured over: random weights, made on the device layer by layer.

Whatever holds the layers, the weights are the same ones, in 4 bits those of the others rounded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.model.layers import Decoder, LayerWeights, layer_over
from slidepack.engine.model.nf4_layers import Nf4Layers
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.slab import Slab

__all__ = ["Base", "BaseBytes", "host_base", "nf4_base", "resident_base"]

_STD: Final = 0.02


@dataclass(frozen=True, slots=True)
class BaseBytes:
    """Memory that a base's weights take."""

    device: int
    """Where the passes run; of a base that slides, its embedding, head and last norm."""
    host: int
    """Of layers that slide; 0 where they do not."""


@dataclass(frozen=True, slots=True)
class Base:
    """A frozen base, and the memory that it takes."""

    decoder: Decoder
    bytes: BaseBytes
    slab: Slab | None = None
    """Of layers that slide."""

    def close(self) -> None:
        """Give pinned memory back to the driver; nothing may be on its way to the card."""
        if self.slab is not None:
            self.slab.close()


def resident_base(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Base:
    """Make a base whose layers stay on the device as they are.

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    weights = _RandomWeights(shape, device, dtype)
    layers: list[LayerWeights] = []
    decoder = weights.decoder(weights.empty, layers.append, layers)
    held = sum(layer.flat.nbytes for layer in layers)
    return Base(decoder, BaseBytes(_ends_bytes(decoder) + held, 0))


def nf4_base(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Base:
    """Make a base whose linears are held in 4 bits; one layer of `dtype` is there at a time.

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    narrow = Nf4Layers(shape, device, dtype)
    decoder = _RandomWeights(shape, device, dtype).decoder(
        narrow.room, narrow.keep, narrow, narrow.refetch
    )
    return Base(decoder, BaseBytes(_ends_bytes(decoder) + narrow.num_bytes, 0))


def host_base(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Base:
    """Make a base whose layers are in host memory, pinned for a card, and its ends on the device.

    Raises:
        OSError: the host has not so much memory.
        torch.OutOfMemoryError: the ends do not fit.
    """
    size = Slab.padded(shape.layer_params * dtype.itemsize)
    slab = Slab(shape.num_layers * size, pin=device.type == "cuda")
    weights = _RandomWeights(shape, device, dtype)
    room = weights.empty(shape.layer_params)
    layers: list[LayerWeights] = []

    def keep(layer: LayerWeights) -> None:
        flat = slab.take(shape.layer_params, dtype)
        flat.copy_(layer.flat)
        layers.append(layer_over(flat, shape))

    decoder = weights.decoder(lambda _: room, keep, layers)
    return Base(decoder, BaseBytes(_ends_bytes(decoder), shape.num_layers * size), slab)


class _RandomWeights:
    """Matrices and biases normal, sigma 0.02; norms by 1."""

    def __init__(self, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(0)
        self._unit = 0.0 if shape.norm_plus_one else 1.0

    def empty(self, *size: int) -> Tensor:
        """Return memory on the device."""
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def decoder(
        self,
        room: Callable[[int], Tensor],
        keep: Callable[[LayerWeights], None],
        layers: Sequence[LayerWeights],
        refetch: Callable[[int, str], Tensor] | None = None,
    ) -> Decoder:
        """Make a decoder.

        Args:
            room: returns memory on the device for the elements of the next layer.
            keep: takes that layer once it is filled.
            layers: what was kept.
            refetch: of the decoder.
        """
        shape = self._shape
        embedding = self._fill(self.empty(shape.vocab, shape.hidden))
        head = embedding
        if not shape.tied_head:
            head = self._fill(self.empty(shape.vocab, shape.hidden))
        for _ in range(shape.num_layers):
            layer = layer_over(self._fill(room(shape.layer_params)), shape)
            for name, view in layer.named.items():
                if "norm" in name:
                    view.fill_(self._unit)
            keep(layer)
        final_norm = self.empty(shape.hidden).fill_(self._unit)
        return Decoder(shape, embedding, layers, final_norm, head, refetch)

    def _fill(self, tensor: Tensor) -> Tensor:
        return tensor.normal_(0.0, _STD, generator=self._generator)


def _ends_bytes(decoder: Decoder) -> int:
    head = 0 if decoder.shape.tied_head else decoder.head.nbytes
    return decoder.embedding.nbytes + decoder.final_norm.nbytes + head
