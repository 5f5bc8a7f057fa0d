"""What of a full fine-tuning's state goes to drives where the RAM is too small. Torch-free.

Moments go first: each is read and written once a step. Master weights follow: the passes read them
twice more. The inputs of the layers go last, as they grow with the batch. Of each, what goes is
spread evenly over the layers, so that the drives are as busy at one moment as at another; the
embedding goes last, as nothing else can be done while it is updated.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import chain
from typing import Final

import msgspec

from slidepack.engine.contract.job import NvmeUse
from slidepack.engine.contract.plan import FullPlan, NvmePlan
from slidepack.engine.memory_full_need import (
    drive_state_bytes,
    master_bytes,
    moment_bytes,
    unit_sizes,
)
from slidepack.engine.shape import ModelShape

__all__ = [
    "STORE_STAGES",
    "Placement",
    "Traffic",
    "traffic",
    "units_in_order",
    "with_traffic",
]

_CHUNK_ELEMENTS: Final = 8 << 20
_BLOCK_ELEMENTS: Final = 4096
"""A chunk is a multiple: of the blocks of 8-bit moments, and of pages in every format."""
STORE_STAGES: Final = 2
"""Of the store's own: a chunk that is read or set by hand, and a copy of the last one."""
_STATE_STAGES: Final = 10 + STORE_STAGES
"""Of the engines: four on their way in, two being updated, four on their way out."""
_MORE_WEIGHT_STAGES: Final = 2
_MOST_WEIGHT_STAGES: Final = 7
"""Layers in RAM: as many as the card has slots for, and some that are read ahead of those."""
_CPU_WEIGHT_STAGES: Final = 2
"""On a CPU, which reads layers to where its passes read them."""
_ROW_STAGES: Final = 8
"""Six that are read ahead, two that are written."""
_ROWS_AT_HAND: Final = 5
"""Micro-batches that the next layer finds as they were made; it reads the others from the drive."""

Counts = tuple[int, ...]
"""How many units' moments, units' master weights, and layers' inputs are on drives."""


class Placement:
    """Chooses how much of a plan goes to drives."""

    def __init__(
        self,
        shape: ModelShape,
        use: NvmeUse,
        folders: tuple[str, ...],
        *,
        on_cpu: bool,
    ) -> None:
        """Bind what does not change between plans.

        Args:
            shape: sizes.
            use: what the job asks for.
            folders: on drives; empty where nothing can go there.
            on_cpu: the passes run on the CPU, in fp32.
        """
        self._shape = shape
        self._use = use
        self.folders = folders
        self._on_cpu = on_cpu
        sizes = unit_sizes(shape)
        self._largest = max(sizes)
        self._order = units_in_order(shape.num_layers, len(sizes))
        self._row_order = units_in_order(shape.num_layers, shape.num_layers)

    @property
    def is_asked(self) -> bool:
        """Whether the job wants something to be on drives, whatever the RAM is."""
        return any(self._least())

    def asked(self, full: FullPlan, micro: int) -> FullPlan:
        """Return the plan with what the job asks to be on drives, and nothing more."""
        return self._with(full, micro, self._least())

    def smallest(
        self, full: FullPlan, micro: int, fits: Callable[[FullPlan], bool]
    ) -> FullPlan | None:
        """Return the plan with as little on drives as lets it fit; None where nothing does.

        Args:
            full: the plan with nothing there.
            micro: most tokens of a micro-batch.
            fits: whether a plan fits the RAM.
        """
        counts = self._least()
        for kind, most in enumerate(self._most(full)):

            def plan(count: int, kind: int = kind, counts: Counts = counts) -> FullPlan:
                return self._with(full, micro, (*counts[:kind], count, *counts[kind + 1 :]))

            # More of a kind takes less RAM, but for the buffers that the first one brings.
            tries = range(counts[kind], most + 1)
            found = bisect_left(tries, True, key=lambda count: fits(plan(count)))
            if found < len(tries):
                return plan(tries[found])
            counts = (*counts[:kind], max(most, counts[kind]), *counts[kind + 1 :])
        return None

    def _least(self) -> Counts:
        use, units = self._use, len(self._order)
        master = _part(use.master, units)
        moments = max(_part(use.moments, units), master)
        return moments, master, _part(use.rows, len(self._row_order))

    def _most(self, full: FullPlan) -> Counts:
        """Return how many units may go, of moments and master weights, and layers' inputs."""
        least, units = self._least(), len(self._order)
        moments = units if self._use.moments is None else least[0]
        master = moments if self._use.master is None else least[1]
        free = self._use.rows is None and full.rows == "host"
        return moments, master, len(self._row_order) if free else least[2]

    def _with(self, full: FullPlan, micro: int, counts: Counts) -> FullPlan:
        moments, master, rows = counts
        if not moments and not rows:
            return full
        width = 4 if self._on_cpu else 2
        plan = NvmePlan(
            folders=self.folders,
            moments=tuple(sorted(self._order[:moments])),
            master=tuple(sorted(self._order[:master])),
            rows=tuple(sorted(self._row_order[:rows])),
            chunk_elements=min(_CHUNK_ELEMENTS, _rounded(self._largest)),
            state_stages=_STATE_STAGES if moments else 0,
            weight_stages=_weight_stages(full, on_cpu=self._on_cpu) if master else 0,
            row_stages=_ROW_STAGES if rows else 0,
            held_bytes=0,
            step_read_bytes=0,
            step_write_bytes=0,
        )
        placed = msgspec.structs.replace(full, nvme=plan)
        level = full.max_tokens * self._shape.hidden * width
        held = drive_state_bytes(self._shape, placed, split=not self._on_cpu) + rows * level
        plan = msgspec.structs.replace(plan, held_bytes=held)
        placed = msgspec.structs.replace(full, nvme=plan)
        return with_traffic(self._shape, placed, micro, on_cpu=self._on_cpu)


def with_traffic(shape: ModelShape, full: FullPlan, micro: int, *, on_cpu: bool) -> FullPlan:
    """Return a plan with what a step of it moves to and from drives.

    Args:
        shape: sizes.
        full: the plan; one with nothing on drives is returned as it is.
        micro: most tokens of a micro-batch.
        on_cpu: the passes run on the CPU.
    """
    if full.nvme is None:
        return full
    batches = math.ceil(full.max_tokens / micro)
    moved = traffic(shape, full, full.max_tokens, on_cpu=on_cpu, batches=batches)
    plan = msgspec.structs.replace(
        full.nvme,
        step_read_bytes=round(sum(moved.reads)),
        step_write_bytes=round(sum(moved.writes)),
    )
    return msgspec.structs.replace(full, nvme=plan)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between drives and RAM in a step, by the part of the step they are needed in."""

    weights: float
    """Read by the forward pass, and once more by the backward pass."""
    update: float
    """Read and written by the update of everything but the embedding."""
    embedding: float
    """Read and written by the embedding's update."""
    rows: float
    """Written by the forward pass, read by the backward pass."""
    rows_again: float
    """Of those, read by the forward pass too, for the next layer."""

    @property
    def reads(self) -> tuple[float, ...]:
        """All that is read."""
        return (2 * self.weights, self.update, self.embedding, self.rows, self.rows_again)

    @property
    def writes(self) -> tuple[float, ...]:
        """All that is written."""
        return (self.update, self.embedding, self.rows)


def traffic(
    shape: ModelShape, full: FullPlan, tokens: float, *, on_cpu: bool, batches: int = 1
) -> Traffic:
    """Return what a step of so many tokens moves.

    The ends are on the card for the passes, and in the RAM on a CPU; only their updates move them.

    Args:
        shape: sizes.
        full: the plan.
        tokens: of the step.
        on_cpu: the passes run on the CPU.
        batches: micro-batches that the step is cut into.
    """
    if full.nvme is None:
        return Traffic(weights=0.0, update=0.0, embedding=0.0, rows=0.0, rows_again=0.0)
    sizes, width = unit_sizes(shape), 4 if on_cpu else 2
    state = [0.0] * len(sizes)
    for unit in full.nvme.moments:
        state[unit] += moment_bytes(sizes[unit], full.moments)
    for unit in full.nvme.master:
        state[unit] += master_bytes(sizes[unit], split=not on_cpu)
    embedding = state.pop(shape.num_layers)
    # What stays on the card is not read again.
    passed = 0 if full.weights == "resident" and not on_cpu else width
    rows = len(full.nvme.rows) * tokens * shape.hidden * width
    return Traffic(
        weights=passed * sum(sizes[unit] for unit in full.nvme.master if unit < shape.num_layers),
        update=sum(state),
        embedding=embedding,
        rows=rows,
        rows_again=rows * max(0, batches - _ROWS_AT_HAND) / batches,
    )


def units_in_order(layers: int, units: int) -> tuple[int, ...]:
    """Return units in the order in which they go to drives: any first part is spread evenly.

    Args:
        layers: number of decoder layers, which come first among the units.
        units: with the ends; the embedding comes first of those and goes last.
    """
    bits = max(1, (layers - 1).bit_length())
    spread = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return tuple(
        chain((unit for unit in spread if unit < layers), range(units - 1, layers - 1, -1))
    )


def _part(share: float | None, whole: int) -> int:
    return 0 if share is None else round(share * whole)


def _weight_stages(full: FullPlan, *, on_cpu: bool) -> int:
    if on_cpu:
        return _CPU_WEIGHT_STAGES
    return min(full.weight_slots + _MORE_WEIGHT_STAGES, _MOST_WEIGHT_STAGES)


def _rounded(elements: int) -> int:
    return -(-elements // _BLOCK_ELEMENTS) * _BLOCK_ELEMENTS
