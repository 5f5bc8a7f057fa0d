"""Trained state with random weights, made where that is fast and copied layer by layer."""

from typing import Final

import torch
from torch import Tensor

from slidepack.engine.model.layers import layer_over
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.state import StateFormat, TrainState, units_of
from slidepack.engine.sliding.tier_store import TierSetup

__all__ = ["random_state"]

_STD: Final = 0.02


def random_state(
    shape: ModelShape,
    form: StateFormat,
    device: torch.device,
    alias_layers: int | None,
    tier: TierSetup | None = None,
) -> TrainState:
    """Allocate a model's state, and fill it: matrices random, norms 1, biases 0.

    Args:
        shape: sizes.
        form: how the state is stored.
        device: where the weights are made; the state is pinned for a card.
        alias_layers: layers of storage that all layers share; None gives each its own.
        tier: what of it is on a drive; None keeps all in RAM.
    """
    units = units_of(shape)
    homes = [
        unit % alias_layers if alias_layers and unit < shape.num_layers else unit
        for unit in range(len(units))
    ]
    state = TrainState(units, form, pin=device.type == "cuda", homes=homes, tier=tier)
    generator = torch.Generator(device).manual_seed(0)
    for unit in sorted(set(homes)):
        flat = torch.empty(units[unit].elements, dtype=form.compute_dtype, device=device)
        flat.normal_(std=_STD, generator=generator)
        _set_vectors(flat, unit, shape, last=unit == len(units) - 1)
        state.assign(unit, 0, {"master": flat.cpu()})
        del flat
    return state


def _set_vectors(flat: Tensor, unit: int, shape: ModelShape, *, last: bool) -> None:
    if last:
        flat[-shape.hidden :] = 1.0
    if unit < shape.num_layers:
        for name, weight in layer_over(flat, shape).named.items():
            if weight.dim() == 1:
                weight.fill_(0.0 if name.endswith(".bias") else 1.0)
