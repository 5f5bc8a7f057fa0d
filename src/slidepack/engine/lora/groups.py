"""Linears that share an input are one product: q with k and v, gate with up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.shape import ModelShape
from slidepack.kernels import LoraLayout

__all__ = ["GROUPS", "LoraGroup", "group_layout"]


@dataclass(frozen=True, slots=True)
class LoraGroup:
    """Neighbouring linears of a decoder layer."""

    name: str
    targets: tuple[str, ...]
    """PEFT's names, in the order in which their outputs lie side by side."""


GROUPS: Final = (
    LoraGroup("qkv", ("q_proj", "k_proj", "v_proj")),
    LoraGroup("o", ("o_proj",)),
    LoraGroup("gate_up", ("gate_proj", "up_proj")),
    LoraGroup("down", ("down_proj",)),
)
"""In the order of a layer's pass; a group's index is part of the key of its dropout."""


def group_layout(group: LoraGroup, shape: ModelShape, methods: Sequence[LoraMethod]) -> LoraLayout:
    """Return the layout of some adapters for one group."""
    return LoraLayout(
        in_width=shape.linear_shape(group.targets[0])[1],
        part_widths=tuple(shape.linear_shape(target)[0] for target in group.targets),
        ranks=tuple(
            tuple(method.rank if target in method.targets else 0 for target in group.targets)
            for method in methods
        ),
    )
