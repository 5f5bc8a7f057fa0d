"""A walk over sliding layers holds one at a time, and none once it is over or broken off."""

from pathlib import Path
from typing import cast

import pytest
import torch
from support.families import tiny_family

from slidepack.engine.shape import ModelShape, read_shape
from slidepack.engine.sliding.sliding_layers import SlidingLayers
from slidepack.engine.sliding.weight_ring import Weights


class _Counted:
    """Weights that know who holds them."""

    def __init__(self, shape: ModelShape) -> None:
        self.held: set[int] = set()
        self._flat = torch.zeros(shape.layer_params)

    def acquire(self, layer: int) -> torch.Tensor:
        self.held.add(layer)
        return self._flat

    def release(self, layer: int) -> None:
        self.held.remove(layer)

    def prefetch(self, layer: int) -> None:
        del layer


def test_a_walk_that_breaks_off_holds_nothing(tmp_path: Path) -> None:
    tiny_family(tmp_path, "qwen2", tied=True)
    shape = read_shape(tmp_path)
    weights = _Counted(shape)
    layers = SlidingLayers(cast("Weights", weights), shape, 1)
    for number, _ in enumerate(layers):
        assert weights.held == {number}
    assert weights.held == set()

    def walk() -> None:
        for number, _ in enumerate(layers):
            if number:
                raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        walk()
    assert weights.held == set()
