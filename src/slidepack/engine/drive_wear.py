"""What training with state on drives costs them. Torch-free."""

import math
from typing import Final

import msgspec

from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import NvmePlan, RunPlan
from slidepack.engine.memory_full_need import drive_state_bytes
from slidepack.engine.memory_parts import RESULT_COPIES, NvmeRoom
from slidepack.engine.rates import Rates
from slidepack.engine.shape import ModelShape
from slidepack.engine.timing import step_time

__all__ = ["RunWear", "copies_text", "drives_text", "wear_of"]

_HOUR: Final = 3600.0
_DAY_HOURS: Final = 24.0


class RunWear(msgspec.Struct, frozen=True, kw_only=True):
    """What steps write, and how long the drives take that."""

    step_bytes: int
    """Written by a step."""
    run_bytes: int | None
    """Written by all steps of a run; None where they are not known."""
    rated_bytes: float | None
    """What the drives take in their life; None where nobody knows."""
    rated_source: str
    taken_bytes: float | None
    """What they have taken so far; None where they do not tell."""
    left_bytes: float | None
    """Of what they take in their life, by that."""
    steps_left: int | None
    """Until then."""
    hours_left: float | None
    """Of training, until then; None where a step's time is not known."""

    def sentence(self) -> str:
        """Return all of it in words, for `fit`, the check before a job, and a run's warning."""
        said = f"Each step writes {_size(self.step_bytes)} to the drives"
        if self.run_bytes is not None:
            said += f", all steps {_size(self.run_bytes)}"
        if self.rated_bytes is None or self.steps_left is None or self.left_bytes is None:
            return f"{said}, and what they are rated to take is not known: this wears them out."
        if self.run_bytes is not None:
            said += f" ({self.run_bytes / self.rated_bytes:.1%} of what they are rated for)"
        rated = f"rated for {_size(self.rated_bytes)} ({self.rated_source})"
        if self.taken_bytes is None:
            rated += ", taken for new because they do not tell what they have taken"
        elif self.taken_bytes > 0:
            rated += f", {_size(min(self.taken_bytes, self.rated_bytes))} of it used"
        if not self.steps_left:
            return f"{said}. They are {rated}: they have outlived that already."
        after = f"{self.steps_left:,} steps"
        if self.hours_left is not None:
            after += f", {_time(self.hours_left)} of training"
        return f"{said}. They are {rated}: that is reached after {after}."


def wear_of(
    tier: NvmePlan, *, step_seconds: float | None = None, steps: int | None = None
) -> RunWear:
    """Return what a plan costs its drives.

    Args:
        tier: of the plan.
        step_seconds: of a step, predicted or measured.
        steps: of the run, or of what is left of it.
    """
    written = tier.step_write_bytes
    left = steps_left = hours = None
    if tier.rated_write_bytes is not None:
        left = max(0.0, tier.rated_write_bytes - (tier.written_bytes or 0.0))
        # A plan that only reads never wears a drive out.
        steps_left = math.floor(left / written) if written else None
        if steps_left is not None and step_seconds is not None:
            hours = steps_left * step_seconds / _HOUR
    return RunWear(
        step_bytes=written,
        run_bytes=None if steps is None else written * steps,
        rated_bytes=tier.rated_write_bytes,
        rated_source=tier.rated_source,
        taken_bytes=tier.written_bytes,
        left_bytes=left,
        steps_left=steps_left,
        hours_left=hours,
    )


def copies_text(num_bytes: int) -> str:
    """Return what checkpoints write beside the steps, in words; nothing where they are links.

    Args:
        num_bytes: of the state on drives that a checkpoint copies.
    """
    if not num_bytes:
        return ""
    return (
        f" Every checkpoint writes {_size(num_bytes)} more to where it lies: the file system makes "
        "no links from there to the drives, so it is a copy."
    )


def _pause_text(num_bytes: int, room: NvmeRoom | None) -> str:
    """Return what a pause asks of the drives, in words; nothing where they have that.

    The attempt that goes on has files of its own while two checkpoints hold those before it.

    Args:
        num_bytes: of the state on drives.
        room: the drives as they are, without that state.
    """
    if room is None or not room.linked:
        return ""
    wanted = (2 * RESULT_COPIES - 1) * num_bytes
    if wanted <= room.free_bytes:
        return ""
    return (
        f" To go on after a pause it needs room for its checkpoints as well, {_size(wanted)} in "
        f"all, of which {_size(room.free_bytes)} are free: it would wait until there is more."
    )


def drives_text(
    spec: JobSpec,
    shape: ModelShape,
    plan: RunPlan,
    rates: Rates,
    steps: int | None = None,
    *,
    room: NvmeRoom | None = None,
) -> str:
    """Return what state on drives costs, in words: time, and the drives' wear; else nothing.

    Args:
        spec: the job's.
        shape: the model's.
        plan: that may put state on drives.
        rates: of the machine and its drives.
        steps: of the run; None where they are not known.
        room: the drives, where something is known of them.
    """
    if plan.full is None or plan.full.nvme is None:
        return ""
    in_ram = msgspec.structs.replace(plan, full=msgspec.structs.replace(plan.full, nvme=None))
    seconds, alone = (step_time(spec, shape, one, rates).seconds for one in (plan, in_ram))
    said = f"With all state in RAM a step would take {alone:.1f} s instead of {seconds:.1f}. "
    said += wear_of(plan.full.nvme, step_seconds=seconds, steps=steps).sentence()
    state = drive_state_bytes(shape, plan.full, split=plan.precision == "bf16")
    copied = state if room is not None and not room.linked else 0
    return said + copies_text(copied) + _pause_text(state, room)


def _size(num_bytes: float) -> str:
    for unit, width in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if num_bytes >= width:
            return f"{num_bytes / width:.3g} {unit}"
    return f"{num_bytes / 1e6:.3g} MB"


def _time(hours: float) -> str:
    if hours < 2 * _DAY_HOURS:
        return f"{hours:,.0f} hours"
    return f"{hours:,.0f} hours ({hours / _DAY_HOURS:,.0f} days)"
