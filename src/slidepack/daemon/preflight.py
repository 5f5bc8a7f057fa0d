"""What a job would train on, and whether it would fit: asked before it is queued."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import Waiting
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.planning.picture import PlannedDevice
from slidepack.daemon.planning.work_left import expected_rows, steps_in_all
from slidepack.daemon.requests import JobRequest, freeze_job
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.tier_room import TierRoom
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.data.model_report import (
    Fix,
    MeasureRequest,
    ModelDataReport,
    measure_in_process,
)
from slidepack.engine.data.model_verdict import model_error, model_fixes, model_issues
from slidepack.engine.data.report import Issue, Verdict
from slidepack.engine.drive_wear import drives_text
from slidepack.engine.memory import plan_run
from slidepack.engine.memory_parts import NvmeRoom
from slidepack.engine.rates import with_drives
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["Preflight", "preflight"]


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What a job would come to."""

    measured: ModelDataReport
    """The dataset with the model's tokenizer and the job's limit."""
    issues: tuple[Issue, ...]
    fixes: tuple[Fix, ...]
    """Settings of the job with which more of the rows would be learned."""
    plan: RunPlan | None
    """How it would use the whole machine; None where it cannot, or that is not known yet."""
    drives: str
    """What the plan's state on drives costs in time and wear; empty where RAM holds everything."""
    waiting: str
    """Why there is no plan yet; "" where there is one, or none to come."""
    short_of_disk: str
    """What the disks lack as they are now, for which it would wait; "" where there is room."""
    error: ErrorReport | None
    verdict: Verdict


def preflight(
    request: JobRequest,
    catalogue: Catalogue,
    paths: DataPaths,
    device: PlannedDevice | Waiting,
    measure_drives: Callable[[], NvmeRoom | None],
    disk: DiskRoom,
) -> Preflight:
    """Measure a job's rows and plan its training. Takes as long as it takes to tokenise the rows.

    Args:
        request: as a job is asked for.
        catalogue: of models and datasets.
        paths: of the data directory.
        device: all of it, not what is free now.
        measure_drives: asked where state would be on drives.
        disk: that of the data directory.

    Raises:
        OSError: a disk does not answer.
        SlidepackError: those of `freeze_job`, of the model's folder, and of its tokenizer.
    """
    spec = freeze_job(request, catalogue, paths)
    shape = read_shape(Path(spec.base.path))
    measured = measure_in_process(
        MeasureRequest.of(
            spec.dataset.path,
            Path(spec.base.path),
            min(spec.max_seq_len, shape.max_positions),
            spec.too_long,
        )
    )
    issues = tuple(model_issues(measured))
    fixes = tuple(model_fixes(measured, shape.max_positions))
    plan, refusal = _plan(spec, shape, device)
    drives = ""
    if plan is not None and plan.full is not None and plan.full.nvme is not None:
        assert isinstance(device, PlannedDevice)
        room = measure_drives()
        rates = with_drives(device.rates, room)
        steps = steps_in_all(spec, expected_rows(spec, measured.encoded_rows))
        drives = drives_text(spec, shape, plan, rates, steps, room=room)
    short = "" if plan is None else TierRoom(paths.home, disk).shortage(plan, spec)
    error = model_error(measured, fixes, allow_rejects=False) or refusal
    return Preflight(
        measured=measured,
        issues=issues,
        fixes=fixes,
        plan=plan,
        drives=drives,
        waiting=device.reason if isinstance(device, Waiting) else "",
        short_of_disk=short,
        error=error,
        verdict="refuse" if error else "warn" if issues or short else "ok",
    )


def _plan(
    spec: JobSpec, shape: ModelShape, device: PlannedDevice | Waiting
) -> tuple[RunPlan | None, ErrorReport | None]:
    if isinstance(device, Waiting):
        return None, None
    try:
        return plan_run(spec, shape, device.machine), None
    except SlidepackError as error:
        return None, error.report
