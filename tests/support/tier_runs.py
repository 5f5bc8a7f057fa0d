"""Runs whose trained state is on a drive."""

from pathlib import Path

import msgspec

from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import NvmePlan
from slidepack.engine.contract.runfolder import RunFolder, write_atomic
from slidepack.engine.shape import read_shape
from slidepack.engine.sliding.state import units_of
from slidepack.engine.sliding.tier_layout import spread
from support.runs import make_run

CHUNK = 8192


def make_tier_run(
    root: Path,
    spec: JobSpec,
    drive: Path,
    *,
    share: float = 1.0,
    attempt: int = 1,
    resume_from: tuple[str, ...] = (),
) -> RunFolder:
    """Create a run folder with a share of everything on a drive.

    Args:
        root: of the run; the folder that it is in is the job's.
        spec: of the job.
        drive: a folder, made where it is not there.
        share: of the moments, the master weights and the inputs of the layers.
        attempt: number.
        resume_from: checkpoints, newest first.
    """
    drive.mkdir(parents=True, exist_ok=True)
    folder = make_run(root, spec, attempt=attempt, resume_from=resume_from)
    plan = folder.read_plan()
    assert plan.full is not None
    shape = read_shape(Path(spec.base.path))
    units, layers = (
        tuple(index for index, chosen in enumerate(spread(count, share)) if chosen)
        for count in (len(units_of(shape)), shape.num_layers)
    )
    nvme = NvmePlan(
        folders=(str(drive),),
        moments=units,
        master=units,
        rows=layers,
        chunk_elements=CHUNK,
        state_stages=3,
        weight_stages=2,
        row_stages=8,
        held_bytes=0,
        step_read_bytes=0,
        step_write_bytes=0,
    )
    full = msgspec.structs.replace(
        plan.full, weights="slide", weight_slots=2, rows="host", nvme=nvme
    )
    write_atomic(folder.plan, msgspec.json.encode(msgspec.structs.replace(plan, full=full)))
    return folder
