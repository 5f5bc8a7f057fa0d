"""Between a Hugging Face folder and the trained state: tensor by tensor, never two models."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from slidepack.engine.model.loading import Shards
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.state import TrainState

__all__ = ["fill_state", "sized_places", "state_tensors", "tensor_places"]


def fill_state(
    folder: Path,
    shape: ModelShape,
    state: TrainState,
    on_layer: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Fill the master weights from a folder.

    Raises:
        SlidepackError: MODEL-PICKLE or MODEL-BROKEN.
    """
    shards = Shards(folder)
    for unit, tensors in enumerate(_layout(shape)):
        start = 0
        for name, size in tensors.items():
            state.write(unit, start, shards.read(name, size))
            start += math.prod(size)
        on_layer(min(unit + 1, shape.num_layers), shape.num_layers)


def state_tensors(shape: ModelShape, state: TrainState) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's tensors as the passes read them, under their Hugging Face names."""
    for name, size, (unit, start, count) in sized_places(shape):
        yield name, state.weights(unit, start, start + count).view(size)


def tensor_places(shape: ModelShape) -> dict[str, tuple[int, int, int]]:
    """Return, by Hugging Face name, a tensor's unit, its first element there and how many it has.

    In the order of the units.
    """
    return {name: place for name, _, place in sized_places(shape)}


def sized_places(
    shape: ModelShape,
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int, int]]]:
    """Yield each tensor's name, its size, and its place as `tensor_places` has it."""
    for unit, tensors in enumerate(_layout(shape)):
        start = 0
        for name, size in tensors.items():
            yield name, size, (unit, start, math.prod(size))
            start += math.prod(size)


def _layout(shape: ModelShape) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the tensors of each unit, in the order of its flat range."""
    for layer in range(shape.num_layers):
        yield {
            f"model.layers.{layer}.{name}": size
            for name, size in shape.layer_tensor_shapes().items()
        }
    table, norm = (shape.vocab, shape.hidden), (shape.hidden,)
    if shape.tied_head:
        yield {"model.embed_tokens.weight": table, "model.norm.weight": norm}
        return
    yield {"model.embed_tokens.weight": table}
    yield {"lm_head.weight": table, "model.norm.weight": norm}
