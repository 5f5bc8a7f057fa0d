"""A plan as it is shown: with the names of jobs, why each waits, and how far off others were."""

from collections.abc import Mapping

import msgspec

from slidepack.daemon.planner.answer import Plan, TaskPlan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planner.tasks import Task
from slidepack.daemon.planning.picture import Picture, PlannedJob, job_of
from slidepack.daemon.planning.planned_queue import reason_of
from slidepack.daemon.store.costs import Accuracy

__all__ = ["PlanReport", "ReportedDevice", "ReportedJob", "make_report"]


class ReportedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the plan."""

    key: str
    name: str
    memory_bytes: int
    """That plans may use."""


class ReportedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a job. Times are unix seconds."""

    key: str
    job_id: int | None
    """None where it is only thought of."""
    name: str
    method: str
    """`lora` or `full`."""
    steps: int
    """That are left."""
    tokens_a_step: int
    devices: tuple[str, ...]
    running: bool
    begin: float | None
    """None where it never begins."""
    end: float | None
    deadline: float | None
    """By which its user wants it done."""
    in_time: bool | None
    """Whether it will be; None where it has no deadline."""
    promised: bool
    """Whether an earlier plan has shown that it would be."""
    fits: bool
    waits: str
    """Why it does not begin now; empty where it does."""
    remedy: str
    """What would make it fit; empty where it does."""


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `slidepack plan --json` prints."""

    plan: Plan | None
    """None where there is no device."""
    waiting: str
    """Why there is none."""
    devices: tuple[ReportedDevice, ...]
    jobs: tuple[ReportedJob, ...]
    accuracy: tuple[Accuracy, ...]
    """Of earlier predictions."""
    notes: tuple[str, ...]
    """What the plan does not know."""


def make_report(
    picture: Picture,
    request: PlanRequest,
    plan: Plan | None,
    *,
    names: Mapping[int, str],
    accuracy: tuple[Accuracy, ...],
    held: str,
) -> PlanReport:
    """Put a plan together with what people want to know of it.

    Args:
        picture: for which it was made.
        request: that was made of the picture.
        plan: None where there is no device.
        names: of the jobs.
        accuracy: of earlier predictions.
        held: why nothing may train now; empty where it may.
    """
    usable = {device.key: device.memory_bytes for device in request.devices}
    tasks = {task.key: task for task in request.tasks}
    planned = {task.task: task for task in plan.tasks} if plan else {}
    return PlanReport(
        plan=plan,
        waiting=picture.waiting,
        devices=tuple(
            ReportedDevice(key=device.key, name=device.name, memory_bytes=usable.get(device.key, 0))
            for device in picture.devices
        ),
        jobs=(
            *(_job(job, tasks.get(job.key), planned.get(job.key), names) for job in picture.jobs),
            *(_unplanned(job_id, why, names) for job_id, why in picture.unplanned.items()),
        ),
        accuracy=accuracy,
        notes=tuple(_notes(picture, held)),
    )


def _job(
    job: PlannedJob, task: Task | None, planned: TaskPlan | None, names: Mapping[int, str]
) -> ReportedJob:
    number = job_of(job.key)
    return ReportedJob(
        key=job.key,
        job_id=number,
        name=names.get(number, "") if number is not None else job.spec.name,
        method=task.kind if task else "",
        steps=job.steps,
        tokens_a_step=task.tokens if task else 0,
        devices=planned.devices if planned else (),
        running=bool(job.running_on),
        begin=planned.begin if planned else None,
        end=planned.end if planned else None,
        deadline=job.deadline,
        in_time=planned.in_time if planned else None,
        promised=job.promised,
        fits=planned.fits if planned else False,
        waits=reason_of(planned, job.deadline) if planned else "",
        remedy=planned.remedy if planned else "",
    )


def _unplanned(job_id: int, why: str, names: Mapping[int, str]) -> ReportedJob:
    return ReportedJob(
        key=f"job {job_id}",
        job_id=job_id,
        name=names.get(job_id, ""),
        method="",
        steps=0,
        tokens_a_step=0,
        devices=(),
        running=False,
        begin=None,
        end=None,
        deadline=None,
        in_time=None,
        promised=False,
        fits=False,
        waits=f"it cannot be planned ({why})",
        remedy="",
    )


def _notes(picture: Picture, held: str) -> list[str]:
    notes = []
    if held:
        notes.append(f"Nothing may train now: {held}. The plan is made as if it might.")
    if picture.windows and any(job.any_time for job in picture.jobs):
        notes.append(
            "Some jobs mind no window. While the windows are closed, the plan lets the others "
            "begin at the next opening, and does not see that it ends again."
        )
    if len(picture.devices) > 1:
        notes.append("The devices share the machine's RAM; each is planned as if it had all of it.")
    return notes
