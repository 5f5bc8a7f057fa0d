"""The trained model in host memory: master weights and AdamW's moments, one flat range a unit.

A unit is a decoder layer, or an end of the model: the embedding, and the head where it has weights
of its own. Weights that decay come first in a unit, norms and biases last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.slab import Slab
from slidepack.kernels import ADAMW_BLOCK, AdamWState, join_master, split_master

__all__ = ["MomentFormat", "StateFormat", "TrainState", "Unit", "units_of"]

MomentFormat = Literal["fp32", "bf16", "int8"]
_MOMENT_DTYPES: Final = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "int8": (torch.int8, torch.uint8),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """One flat range of parameters."""

    name: str
    elements: int
    decayed: int
    """Elements from here on have no weight decay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFormat:
    """How the trained model is stored."""

    split: bool
    """The fp32 master as the bf16 plane that the passes read and a 16-bit remainder; else plain
    fp32, which the passes read as it is."""
    moments: MomentFormat

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the weights that the passes read."""
        return torch.bfloat16 if self.split else torch.float32

    def unit_bytes(self, elements: int) -> int:
        """Return the bytes of a unit's state, padding included."""
        parts = [(elements, 2), (elements, 2)] if self.split else [(elements, 4)]
        parts += [(elements, dtype.itemsize) for dtype in _MOMENT_DTYPES[self.moments]]
        if self.moments == "int8":
            parts += [(-(-elements // ADAMW_BLOCK), 4)] * 2
        return sum(Slab.padded(count * width) for count, width in parts)


def units_of(shape: ModelShape) -> tuple[Unit, ...]:
    """Return the units: the decoder layers, the embedding, and the head where it is not tied.

    The final norm belongs to the last of the ends.
    """
    layer = Unit("layer", shape.layer_params, shape.layer_decayed_params)
    layers = [
        Unit(f"layer {index}", layer.elements, layer.decayed) for index in range(shape.num_layers)
    ]
    table = shape.vocab * shape.hidden
    if shape.tied_head:
        return (*layers, Unit("embedding", table + shape.hidden, table))
    return (
        *layers,
        Unit("embedding", table, table),
        Unit("head", table + shape.hidden, table),
    )


class TrainState:
    """Master weights and moments of every unit, in one exact slab."""

    def __init__(
        self,
        units: Sequence[Unit],
        form: StateFormat,
        *,
        pin: bool,
        homes: Sequence[int] | None = None,
    ) -> None:
        """Allocate, all zero.

        Args:
            units: of the model.
            form: how they are stored.
            pin: the memory is copied to and from a GPU.
            homes: for each unit, the unit whose memory it uses, for a benchmark of a model that
                does not fit; None gives each its own.
        """
        self.units = tuple(units)
        self.form = form
        homes = range(len(units)) if homes is None else homes
        sizes = {home: units[home].elements for home in homes}
        self.slab = Slab(sum(form.unit_bytes(elements) for elements in sizes.values()), pin=pin)
        carved = {home: self._carve(elements) for home, elements in sizes.items()}
        self.states = tuple(carved[home] for home in homes)

    def _carve(self, elements: int) -> AdamWState:
        take = self.slab.take
        master = take(elements, self.form.compute_dtype)
        remainder = take(elements, torch.int16) if self.form.split else None
        first, second = _MOMENT_DTYPES[self.form.moments]
        m, v = take(elements, first), take(elements, second)
        if self.form.moments != "int8":
            return AdamWState(master, remainder, m, v)
        blocks = -(-elements // ADAMW_BLOCK)
        scales = take(blocks, torch.float32), take(blocks, torch.float32)
        return AdamWState(master, remainder, m, v, *scales)

    def weights(self, unit: int) -> Tensor:
        """Return a unit's weights as the passes read them, [elements]."""
        return self.states[unit].master

    def write(self, unit: int, start: int, values: Tensor) -> None:
        """Set master weights from `start` on; the moments stay.

        Args:
            unit: index.
            start: first element.
            values: of any shape and float dtype, on the CPU.
        """
        flat = values.detach().reshape(-1)
        part = slice(start, start + flat.numel())
        whole = self.states[unit]
        if whole.remainder is None:
            whole.master[part] = flat
            return
        plane, remainder = split_master(flat.float())
        whole.master[part] = plane
        whole.remainder[part] = remainder

    def clear_moments(self) -> None:
        """Set the moments to those before the first step."""
        for state in self.states:
            for tensor in (
                state.exp_avg,
                state.exp_avg_sq,
                state.exp_avg_scale,
                state.exp_avg_sq_scale,
            ):
                if tensor is not None:
                    tensor.zero_()

    def read(self, unit: int, start: int, count: int) -> Tensor:
        """Return master weights in fp32, a copy."""
        part = slice(start, start + count)
        whole = self.states[unit]
        if whole.remainder is None:
            return whole.master[part].clone()
        return join_master(whole.master[part], whole.remainder[part])
