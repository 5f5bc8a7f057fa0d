"""Where a unit's state lies in its file on a drive.

First the plane that the passes read, in one piece; then a record for each chunk with everything
else of it, so that the optimizer moves a chunk by two requests. A file holds only what is not in
RAM.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import torch
from torch import Tensor

from slidepack.engine.nvme.files import padded
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state_format import StateFormat, count_of, state_of_named
from slidepack.kernels import AdamWState

__all__ = ["TIER_CHUNK", "Request", "TierParts", "UnitLayout", "spread", "unit_layout"]

TIER_CHUNK: Final = 8 << 20
"""Elements of a chunk: as many as the card's optimizer works on at a time."""
_GRAIN: Final = 4096
"""Elements: a multiple of it is aligned in every dtype, and whole blocks of 8-bit moments."""
_MASTER: Final = ("master", "remainder")


class Request(NamedTuple):
    """One transfer of a chunk."""

    offset: int
    """In the file, in bytes."""
    start: int
    """In the stage."""
    size: int


@dataclass(frozen=True, slots=True)
class TierParts:
    """What of a unit is on the drive."""

    master: bool
    moments: bool

    def __contains__(self, name: str) -> bool:
        """Return whether a field is there."""
        return self.master if name in _MASTER else self.moments


@dataclass(frozen=True)
class UnitLayout:
    """The file of one unit."""

    elements: int
    form: StateFormat
    parts: TierParts
    chunk: int
    """Elements."""

    @cached_property
    def fields(self) -> dict[str, torch.dtype]:
        """What the file holds, by name."""
        return {name: kind for name, kind in self.form.dtypes.items() if name in self.parts}

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return -(-self.elements // self.chunk)

    @cached_property
    def plane_bytes(self) -> int:
        """Of the weights that the passes read, padding included; 0 where they are in RAM."""
        return padded(self.elements * self.form.compute_dtype.itemsize) if self.parts.master else 0

    @cached_property
    def bytes(self) -> int:
        """Of the file."""
        return self.plane_bytes + sum(self._record_bytes(index) for index in range(self.count))

    @cached_property
    def stage_bytes(self) -> int:
        """Of memory that holds a chunk."""
        return sum(request.size for request in self.requests(0))

    def span(self, index: int) -> tuple[int, int]:
        """Return the first element of a chunk, and the one after its last."""
        return index * self.chunk, min((index + 1) * self.chunk, self.elements)

    def chunks(self, start: int, stop: int) -> Iterator[int]:
        """Return the chunks that these elements are in."""
        yield from range(start // self.chunk, -(-stop // self.chunk))

    def requests(self, index: int) -> list[Request]:
        """Return the transfers of a chunk: the plane's, and the record's."""
        found = []
        plane = self._plane_bytes(index)
        if plane:
            start = index * self.chunk * self.form.compute_dtype.itemsize
            found.append(Request(start, 0, plane))
        record = self._record_bytes(index)
        if record:
            before = self.plane_bytes + index * self._record_bytes(0)
            found.append(Request(before, plane, record))
        return found

    def views(self, stage: Tensor, index: int) -> dict[str, Tensor]:
        """Return a chunk's tensors in a stage, by name.

        Args:
            stage: uint8, at least `stage_bytes`.
            index: of the chunk.
        """
        begin, end = self.span(index)
        found, start = {}, self._plane_bytes(index)
        for name, dtype in self.fields.items():
            size = count_of(name, end - begin) * dtype.itemsize
            first = 0 if name == "master" else start
            found[name] = stage[first : first + size].view(dtype)
            if name != "master":
                start += Slab.padded(size)
        return found

    def state(self, stage: Tensor, index: int, in_ram: AdamWState) -> AdamWState:
        """Return a chunk's state: in the stage what is on the drive, the rest where it is."""
        begin, end = self.span(index)
        found = self.views(stage, index)
        for name in self.form.dtypes:
            if name not in found:
                whole = getattr(in_ram, name)
                first, last = count_of(name, begin), count_of(name, end)
                found[name] = whole[first:last]
        return state_of_named(found)

    def _plane_bytes(self, index: int) -> int:
        if not self.parts.master:
            return 0
        begin, end = self.span(index)
        return padded((end - begin) * self.form.compute_dtype.itemsize)

    def _record_bytes(self, index: int) -> int:
        begin, end = self.span(index)
        fields = [name for name in self.fields if name != "master"]
        return padded(sum(self.form.field_bytes(name, end - begin) for name in fields))


def unit_layout(
    elements: int, form: StateFormat, parts: TierParts, chunk: int
) -> UnitLayout | None:
    """Return the layout of a unit's file; None for one that is all in RAM.

    Raises:
        ValueError: the chunk is not aligned in every format.
    """
    if chunk <= 0 or chunk % _GRAIN:
        raise ValueError(f"a chunk has {chunk} elements; use a multiple of {_GRAIN}")
    if not (parts.master or parts.moments):
        return None
    return UnitLayout(elements, form, parts, chunk)


def spread(count: int, share: float) -> tuple[bool, ...]:
    """Return which of so many units are in a share, evenly spread.

    Raises:
        ValueError: the share is not between 0 and 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is {share}; use 0 to 1")
    chosen = [round(index * share) for index in range(count + 1)]
    return tuple(after > before for before, after in itertools.pairwise(chosen))
