"""A plan of the queue, and what follows from it for the supervisor. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.answer import Plan, TaskPlan
from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.planning.open_hours import is_open
from slidepack.daemon.planning.picture import Picture, job_of
from slidepack.daemon.store.plan_input import QueueState

__all__ = ["PlannedQueue", "Start", "could_begin", "planned_queue", "reason_of"]

_NOW_SECONDS: Final = 1.0
"""What begins within so long begins now."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A job that begins now."""

    job_id: int
    device: str
    """`cpu` or `cuda:N`."""


class PlannedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The newest plan."""

    revision: int
    """Counts plans since the daemon began."""
    made_at: float
    """Unix seconds."""
    queue: QueueState
    """For which it was made; it holds no longer than that is so."""
    plan: Plan
    starts: tuple[Start, ...]
    """In the plan's order."""
    busy: frozenset[str]
    """Devices on which jobs run."""
    reasons: dict[int, str]
    """Why jobs wait, as one clause each."""
    next_begin: float | None
    """When time alone lets another job begin: its own comes, or a window opens."""


def reason_of(task: TaskPlan) -> str:
    """Return why a task waits, as one clause; empty where it begins."""
    why = _clause(task.waits)
    if task.fits:
        return why
    return f"fits no device now: {why}; {_clause(task.remedy)}" if task.remedy else why


def could_begin(queue: QueueState, hours: Sequence[Window], now: float) -> bool:
    """Return whether a plan is of use at `now`: a job runs, or one that waits might begin."""
    opened = is_open(hours, now)
    return any(live or opened or any_time for _, live, _, _, any_time in queue)


def planned_queue(picture: Picture, plan: Plan, revision: int) -> PlannedQueue:
    """Return what follows from a plan.

    Jobs that fit nothing, or of which too little is known, are offered last to a device that is
    idle: who starts them finds out what is wrong with them, and says so.

    Args:
        picture: for which the plan was made.
        plan: it.
        revision: its number.
    """
    runs = {job_id for job_id, live, *_ in picture.queue if live}
    busy = frozenset(job.running_on for job in picture.jobs if job.running_on)
    begins = [
        (task.begin, number, task)
        for number, task in enumerate(plan.tasks)
        if task.begin is not None and job_of(task.task) not in runs
    ]
    starts = [
        Start(job_id=job_id, device=task.devices[0])
        for begin, _, task in sorted(begins, key=lambda entry: entry[:2])
        if begin <= plan.now + _NOW_SECONDS and (job_id := job_of(task.task)) is not None
    ]
    return PlannedQueue(
        revision=revision,
        made_at=picture.now,
        queue=picture.queue,
        plan=plan,
        starts=(*starts, *_offers(picture, plan, runs, busy | {one.device for one in starts})),
        busy=busy,
        reasons=_reasons(picture, plan),
        next_begin=_next_begin(picture),
    )


def _reasons(picture: Picture, plan: Plan) -> dict[int, str]:
    reasons = {job_of(task.task): reason_of(task) for task in plan.tasks}
    found = {job_id: why for job_id, why in reasons.items() if job_id is not None and why}
    for job_id, why in picture.unplanned.items():
        found[job_id] = f"waits: it cannot be planned ({why})"
    return found


def _next_begin(picture: Picture) -> float | None:
    times = [job.not_before for job in picture.jobs if job.not_before and not job.running_on]
    times += [window.begin for window in picture.windows]
    return min((time for time in times if time > picture.now), default=None)


def _offers(picture: Picture, plan: Plan, runs: set[int], taken: frozenset[str]) -> list[Start]:
    idle = [device.key for device in picture.devices if device.key not in taken]
    misfits = {job_of(task.task) for task in plan.tasks if not task.fits}
    offered = [
        job_id
        for job_id, *_ in picture.queue
        if job_id not in runs and (job_id in misfits or job_id in picture.unplanned)
    ]
    return [Start(job_id=job_id, device=idle[0]) for job_id in offered] if idle else []


def _clause(sentence: str) -> str:
    """Return a sentence as jobs say why they wait: without its capital and its full stop."""
    short = sentence.strip().removesuffix(".")
    return short[:1].lower() + short[1:]
