"""What would have to change for a job to fit a machine: tries plans, and reports those that fit.

Torch-free.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.memory_full import MOMENT_FORMATS
from slidepack.engine.shape import ModelShape

__all__ = ["Advice", "advise", "ram_by_moments"]

_UNLIMITED: Final = 1 << 50
_STEP: Final = 1 << 26
"""Resolution of the memory that would do."""
_SHORTEST: Final = 16
"""Tokens of a row that a job may have at least."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of which each alone makes the job fit; None where it cannot."""

    ram_needed_bytes: int | None
    """Free RAM that would do; with more VRAM as well, where that is said."""
    vram_needed_bytes: int | None
    """Free VRAM that would do; None where VRAM is not what is missing."""
    largest_batch: int | None
    largest_seq: int | None
    without_clipping: bool
    """Whether it fits where gradients need not wait for their global norm."""

    def sentences(self) -> tuple[str, ...]:
        """Return the changes in words, the least one first."""
        said = []
        if self.without_clipping:
            said.append("Turn clipping off (--clip 0).")
        if self.largest_batch is not None:
            said.append(f"Take at most {self.largest_batch} rows a step (--batch).")
        if self.largest_seq is not None:
            said.append(f"Take rows of at most {self.largest_seq} tokens (--seq).")
        memory = [
            f"{needed / GIB:.1f} GiB of free {name}"
            for name, needed in (("VRAM", self.vram_needed_bytes), ("RAM", self.ram_needed_bytes))
            if needed is not None
        ]
        if memory:
            said.append(f"Use a machine with {' and '.join(memory)}.")
        return tuple(said)


def advise(spec: JobSpec, shape: ModelShape, machine: Machine) -> Advice:
    """Say what would make a job fit that does not."""

    def fits(*, batch: int | None = None, seq: int | None = None, **memory: int) -> bool:
        changed = msgspec.structs.replace(
            spec, batch_size=batch or spec.batch_size, max_seq_len=seq or spec.max_seq_len
        )
        return _fits(changed, shape, msgspec.structs.replace(machine, **memory))

    ram = vram = None
    enough_vram = fits(ram_available_bytes=_UNLIMITED)
    card = machine.device_free_bytes if enough_vram else _UNLIMITED
    if not fits(device_free_bytes=card):
        ram = _least(
            lambda size: fits(device_free_bytes=card, ram_available_bytes=size),
            machine.ram_available_bytes,
        )
    if not enough_vram:
        vram = _least(
            lambda size: fits(device_free_bytes=size, ram_available_bytes=_UNLIMITED),
            machine.device_free_bytes,
        )
    unclipped = msgspec.structs.replace(
        spec, optim=msgspec.structs.replace(spec.optim, clip_norm=0.0)
    )
    return Advice(
        ram_needed_bytes=ram,
        vram_needed_bytes=vram,
        largest_batch=_most(lambda batch: fits(batch=batch), 1, spec.batch_size),
        largest_seq=_most(
            lambda seq: fits(seq=seq), _SHORTEST, min(spec.max_seq_len, shape.max_positions)
        ),
        without_clipping=_fits(unclipped, shape, machine),
    )


def ram_by_moments(spec: JobSpec, shape: ModelShape, machine: Machine) -> dict[str, int]:
    """Return the free RAM that a full fine-tuning wants for each form of its moments.

    A form is left out where the card is too small for any.
    """
    if not isinstance(spec.method, FullMethod):
        return {}
    found: dict[str, int] = {}
    for moments in MOMENT_FORMATS:
        method = msgspec.structs.replace(spec.method, moments=moments)
        changed = msgspec.structs.replace(spec, method=method)

        def fits(size: int, changed: JobSpec = changed) -> bool:
            roomy = msgspec.structs.replace(machine, ram_available_bytes=size, nvme=None)
            return _fits(changed, shape, roomy)

        least = _least(fits, 0)
        if least is not None:
            found[moments] = least
    return found


def _fits(spec: JobSpec, shape: ModelShape, machine: Machine) -> bool:
    try:
        plan_run(spec, shape, machine)
    except SlidepackError:
        return False
    return True


def _least(fits: Callable[[int], bool], at_least: int) -> int | None:
    """Return the smallest size that fits, rounded up; None where none does."""
    low, high = at_least // _STEP, _UNLIMITED // _STEP
    if not fits(high * _STEP):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle * _STEP) else (middle, high)
    return high * _STEP


def _most(fits: Callable[[int], bool], low: int, too_much: int) -> int | None:
    """Return the largest number that fits, from `low` to below `too_much`; None where none does."""
    if low >= too_much or not fits(low):
        return None
    while too_much - low > 1:
        middle = (low + too_much) // 2
        low, too_much = (middle, too_much) if fits(middle) else (low, middle)
    return low
