"""What is said about state on drives, and why it may not be there. Torch-free."""

from collections.abc import Sequence

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import NvmeUse
from slidepack.engine.contract.plan import FullPlan, NvmePlan
from slidepack.engine.memory_full_need import (
    ROWS_ON_DRIVES,
    STATE_ON_DRIVES,
    drive_state_bytes,
    state_bytes,
)
from slidepack.engine.memory_parts import RESULT_COPIES, MemoryNeed, NvmeRoom
from slidepack.engine.shape import ModelShape

__all__ = ["check_drives", "drives_refused", "not_on_drives", "tier_text", "with_rating"]


def drives_refused(use: NvmeUse, room: NvmeRoom | None) -> str:
    """Return why no state goes to drives, as a phrase; empty where it may.

    A folder that a job names is permission enough: the user knows what is below it.
    """
    if not use.allow:
        return "it was asked to do without them"
    if use.folders:
        return ""
    return "no drive is known here" if room is None else room.refused


def not_on_drives(why: str) -> SlidepackError:
    """Return the refusal of a job that asks for state on drives where none can be."""
    return SlidepackError(
        "RUN-SPEC-INVALID",
        "The job asks for state on drives, and none can be there.",
        why=why,
        fix="Name folders on NVMe drives in the setting nvme_folders, or leave the shares out.",
    )


def check_drives(need: MemoryNeed, folders: Sequence[str], room: NvmeRoom | None) -> None:
    """Refuse a plan whose state does not fit the drives.

    Raises:
        SlidepackError: DISK-FULL.
    """
    if room is None or tuple(folders) != room.folders:
        return
    state = need.disk.get(STATE_ON_DRIVES, 0)
    # Copies go to the data directory, whose disk is asked when the run is to start.
    sets = state if room.linked else state // RESULT_COPIES
    wanted = sets + need.disk.get(ROWS_ON_DRIVES, 0)
    if wanted <= room.free_bytes:
        return
    beside = " with its checkpoints" if room.linked else ""
    raise SlidepackError(
        "DISK-FULL",
        "The training state that does not fit the RAM does not fit the drives.",
        why=f"it needs {wanted / 1e9:.1f} GB{beside}, {room.free_bytes / 1e9:.1f} GB "
        f"are free in {' and '.join(room.folders)}",
        fix="Free space there, name folders on other drives in the setting nvme_folders, or choose "
        "a smaller model.",
    )


def with_rating(full: FullPlan, room: NvmeRoom | None) -> FullPlan:
    """Return a plan with what its drives are rated for, so that its run can tell their wear."""
    # What a job names itself is not among the drives that were looked at.
    if full.nvme is None or room is None or full.nvme.folders != room.folders:
        return full
    tier = msgspec.structs.replace(
        full.nvme,
        rated_write_bytes=room.rated_write_bytes,
        rated_source=room.rated_source,
        written_bytes=room.written_bytes,
    )
    return msgspec.structs.replace(full, nvme=tier)


def tier_text(shape: ModelShape, full: FullPlan, tier: NvmePlan, *, on_cpu: bool) -> str:
    """Return what is on drives and what a step moves, as a phrase of a plan's reason."""
    split = not on_cpu
    state = drive_state_bytes(shape, full, split=split)
    whole = state_bytes(shape, full.moments, split=split)
    parts = [
        f"{name} of {count}"
        for name, count in (
            ("moments", _units(tier.moments, shape)),
            ("master weights", _units(tier.master, shape)),
            ("inputs", _units(tier.rows, shape)),
        )
        if count
    ]
    return (
        f"{state / 1e9:.1f} of {whole / 1e9:.1f} GB of the state are on drives "
        f"({', '.join(parts)}; {' and '.join(tier.folders)}), and a step reads "
        f"{tier.step_read_bytes / 1e9:.1f} GB of them and writes {tier.step_write_bytes / 1e9:.1f}"
    )


def _units(units: tuple[int, ...], shape: ModelShape) -> str:
    layers = sum(unit < shape.num_layers for unit in units)
    said = [f"{layers} of {shape.num_layers} layers"] if layers else []
    ends = len(units) - layers
    if ends:
        said.append("embedding and head" if ends > 1 or shape.tied_head else "the head")
    return " and ".join(said)
