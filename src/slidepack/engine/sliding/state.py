"""The trained model in host memory: master weights and AdamW's moments, one flat range a unit.

A unit is a decoder layer, or an end of the model: the embedding, and the head where it has weights
of its own. Weights that decay come first in a unit, norms and biases last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state_format import (
    MomentFormat,
    StateFormat,
    count_of,
    named_tensors,
    state_of_named,
)
from slidepack.engine.sliding.tier_layout import TIER_CHUNK, TierParts, UnitLayout, unit_layout
from slidepack.engine.sliding.tier_store import TierSetup, TierStore
from slidepack.kernels import AdamWState, join_master, split_master

__all__ = ["MomentFormat", "StateFormat", "TrainState", "Unit", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One flat range of parameters."""

    name: str
    elements: int
    decayed: int
    """Elements from here on have no weight decay."""


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
    """Master weights and moments of every unit: in one exact slab, or on drives."""

    def __init__(
        self,
        units: Sequence[Unit],
        form: StateFormat,
        *,
        pin: bool,
        homes: Sequence[int] | None = None,
        tier: TierSetup | None = None,
    ) -> None:
        """Allocate, all zero.

        Args:
            units: of the model.
            form: how they are stored.
            pin: the memory is copied to and from a GPU.
            homes: for each unit, the unit whose memory it uses, for a benchmark of a model that
                does not fit; None gives each its own.
            tier: what is on drives; None keeps everything in RAM.

        Raises:
            OSError: the system has not so much memory.
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
        """
        self.units = tuple(units)
        self.form = form
        homes = range(len(units)) if homes is None else homes
        parts = {home: _parts(home, tier) for home in homes}
        self.slab = Slab(
            sum(_ram_bytes(form, units[home].elements, parts[home]) for home in parts), pin=pin
        )
        self.stored_elements = tuple(units[home].elements for home in parts)
        """Of each unit that has room of its own."""
        carved = {home: self._carve(units[home].elements, parts[home]) for home in parts}
        self.states = tuple(carved[home] for home in homes)
        """What is in RAM; a tensor that is on a drive has no elements here."""
        self.tier: TierStore | None = None
        if tier is not None:
            layouts = [
                unit_layout(unit.elements, form, _parts(home, tier), tier.chunk)
                for unit, home in zip(units, homes, strict=True)
            ]
            self.tier = TierStore(tier, layouts, homes)
            self.tier_stage_bytes = max((one.stage_bytes for one in layouts if one), default=0)

    def _carve(self, elements: int, parts: TierParts) -> AdamWState:
        return state_of_named(
            {
                name: torch.empty(0, dtype=dtype)
                if name in parts
                else self.slab.take(count_of(name, elements), dtype)
                for name, dtype in self.form.dtypes.items()
            }
        )

    def layout(self, unit: int) -> UnitLayout | None:
        """Return where a unit's state lies on the drives; None where all of it is in RAM."""
        if self.tier is None or not self.tier.has(unit):
            return None
        return self.tier.layout(unit)

    def master_on_tier(self, unit: int) -> bool:
        """Return whether a unit's weights are on a drive."""
        layout = self.layout(unit)
        return layout is not None and layout.parts.master

    def weights(self, unit: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Return a unit's weights as the passes read them, flat.

        A view where they are in RAM; a copy of what is on a drive.
        """
        stop = self.units[unit].elements if stop is None else stop
        if not self.master_on_tier(unit):
            return self.states[unit].master[start:stop]
        found = torch.empty(stop - start, dtype=self.form.compute_dtype)
        for first, part in self._fetched(unit, start, stop, only_plane=True):
            plane = part["master"]
            found[first - start : first - start + plane.numel()] = plane
        return found

    def _fetched(
        self, unit: int, start: int, stop: int, *, only_plane: bool = False
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield what is on the drive of these elements, and the first of each piece.

        Scales are of whole blocks: they are right where `start` is the first of one.
        """
        assert self.tier is not None
        layout = self.tier.layout(unit)
        read = self.tier.read_plane if only_plane else self.tier.read_chunk
        for index in layout.chunks(start, stop):
            begin, end = layout.span(index)
            first, last = max(begin, start), min(end, stop)
            yield (
                first,
                {
                    name: tensor[count_of(name, first - begin) : count_of(name, last - begin)]
                    for name, tensor in read(unit, index).items()
                },
            )

    def master(self, unit: int, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Return master weights of some elements as they are stored: the plane, and the rest."""
        if not self.master_on_tier(unit):
            whole = self.states[unit]
            rest = None if whole.remainder is None else whole.remainder[start:stop]
            return whole.master[start:stop], rest
        pieces = [part for _, part in self._fetched(unit, start, stop)]
        plane = torch.cat([part["master"] for part in pieces])
        if not self.form.split:
            return plane, None
        return plane, torch.cat([part["remainder"] for part in pieces])

    def part(self, unit: int, start: int, stop: int) -> AdamWState:
        """Return the state of some elements: views of what is in RAM, copies of the rest.

        Args:
            unit: index.
            start: first element, of a block of 8-bit moments where they have those.
            stop: after the last element.
        """
        found = {
            name: tensor[count_of(name, start) : count_of(name, stop)]
            for name, tensor in named_tensors(self.states[unit]).items()
        }
        if self.layout(unit) is not None:
            pieces = [part for _, part in self._fetched(unit, start, stop)]
            found |= {name: torch.cat([one[name] for one in pieces]) for name in pieces[0]}
        return state_of_named(found)

    def whole(self, unit: int) -> AdamWState:
        """Return a unit's state, as `part` does."""
        return self.part(unit, 0, self.units[unit].elements)

    def assign(self, unit: int, start: int, values: Mapping[str, Tensor]) -> None:
        """Set tensors of a unit by their names, from an element on.

        Args:
            unit: index.
            start: first element; of a block of 8-bit moments where scales are among the values.
            values: flat, in the form of this state.
        """
        for name, tensor in values.items():
            place = getattr(self.states[unit], name)
            if len(place):
                first = count_of(name, start)
                place[first : first + len(tensor)] = tensor
        if self.tier is not None and self.tier.has(unit):
            self.tier.assign(unit, start, values)

    def write(self, unit: int, start: int, values: Tensor) -> None:
        """Set master weights from `start` on; the moments stay.

        Args:
            unit: index.
            start: first element.
            values: of any shape and float dtype, on the CPU.
        """
        flat = values.detach().reshape(-1)
        for first in range(0, flat.numel(), TIER_CHUNK):
            piece = flat[first : first + TIER_CHUNK].float()
            self.assign(unit, start + first, self._master(piece))

    def _master(self, piece: Tensor) -> dict[str, Tensor]:
        if not self.form.split:
            return {"master": piece}
        plane, remainder = split_master(piece)
        return {"master": plane, "remainder": remainder}

    def clear_moments(self) -> None:
        """Set the moments to those before the first step."""
        names = [name for name in self.form.dtypes if name.startswith("exp_avg")]
        for unit, state in enumerate(self.states):
            for name in names:
                getattr(state, name).zero_()
            layout = self.layout(unit)
            if layout is None or not layout.parts.moments:
                continue
            for start, stop in map(layout.span, range(layout.count)):
                zeros = {
                    name: torch.zeros(count_of(name, stop - start), dtype=self.form.dtypes[name])
                    for name in names
                }
                self.assign(unit, start, zeros)

    def read(self, unit: int, start: int, count: int) -> Tensor:
        """Return master weights in fp32, a copy."""
        plane, remainder = self.master(unit, start, start + count)
        return plane.clone() if remainder is None else join_master(plane, remainder)

    def is_finite(self, check: Callable[[], None]) -> bool:
        """Return whether every weight is a number.

        Args:
            check: called now and then; may raise.
        """
        for unit, one in enumerate(self.units):
            for start in range(0, one.elements, TIER_CHUNK):
                check()
                stop = min(start + TIER_CHUNK, one.elements)
                if not bool(torch.isfinite(self.weights(unit, start, stop)).all()):
                    return False
        return True

    @property
    def bytes(self) -> int:
        """Of the state, wherever it is, without padding."""
        return sum(
            count_of(name, unit.elements) * dtype.itemsize
            for unit in self.units
            for name, dtype in self.form.dtypes.items()
        )

    @property
    def ram_bytes(self) -> int:
        """Of what is in RAM."""
        return sum(
            tensor.nbytes for state in self.states for tensor in named_tensors(state).values()
        )

    def close(self) -> None:
        """Give pinned memory back, and remove the files that no checkpoint has."""
        self.slab.close()
        if self.tier is not None:
            self.tier.close(remove=True)


def _parts(unit: int, tier: TierSetup | None) -> TierParts:
    if tier is None:
        return TierParts(master=False, moments=False)
    return TierParts(master=unit in tier.master, moments=unit in tier.moments)


def _ram_bytes(form: StateFormat, elements: int, parts: TierParts) -> int:
    return sum(form.field_bytes(name, elements) for name in form.dtypes if name not in parts)
