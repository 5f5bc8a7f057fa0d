"""How the trained model is stored, wherever it is."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

import torch
from torch import Tensor

from slidepack.engine.sliding.slab import Slab
from slidepack.kernels import ADAMW_BLOCK, AdamWState

__all__ = ["FIELDS", "MomentFormat", "StateFormat", "count_of", "named_tensors", "state_of_named"]

MomentFormat = Literal["fp32", "bf16", "int8"]
_MOMENT_DTYPES: Final = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "int8": (torch.int8, torch.uint8),
}
FIELDS: Final = tuple(field.name for field in fields(AdamWState))
"""Names of a unit's tensors, also in files."""


def count_of(name: str, elements: int) -> int:
    """Return how many values a field has for so many elements: a scale stands for a block."""
    return -(-elements // ADAMW_BLOCK) if name.endswith("_scale") else elements


def named_tensors(state: AdamWState) -> dict[str, Tensor]:
    """Return a unit's tensors by their names, without those that it has not, or not here."""
    named: Mapping[str, Tensor | None] = {name: getattr(state, name) for name in FIELDS}
    return {name: tensor for name, tensor in named.items() if tensor is not None and len(tensor)}


def state_of_named(tensors: Mapping[str, Tensor]) -> AdamWState:
    """Return a unit's tensors as the optimizer takes them."""
    return AdamWState(
        tensors["master"],
        tensors.get("remainder"),
        tensors["exp_avg"],
        tensors["exp_avg_sq"],
        tensors.get("exp_avg_scale"),
        tensors.get("exp_avg_sq_scale"),
    )


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

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype of each field that there is, in the order of `FIELDS`."""
        found = {"master": self.compute_dtype}
        if self.split:
            found["remainder"] = torch.int16
        found["exp_avg"], found["exp_avg_sq"] = _MOMENT_DTYPES[self.moments]
        if self.moments == "int8":
            found["exp_avg_scale"] = found["exp_avg_sq_scale"] = torch.float32
        return found

    def unit_bytes(self, elements: int) -> int:
        """Return the bytes of a unit's state, padding included."""
        return sum(self.field_bytes(name, elements) for name in self.dtypes)

    def field_bytes(self, name: str, elements: int) -> int:
        """Return the bytes of one field of so many elements, padding included."""
        return Slab.padded(count_of(name, elements) * self.dtypes[name].itemsize)
