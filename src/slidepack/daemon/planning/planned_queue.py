"""A plan of the queue, and what follows from it for the supervisor. Pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.answer import Plan, TaskPlan
from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.planning.open_hours import is_open
from slidepack.daemon.planning.picture import Picture, job_of
from slidepack.daemon.store.plan_input import QueueState

__all__ = [
    "Move",
    "PlannedQueue",
    "Start",
    "could_begin",
    "newly_in_time",
    "planned_queue",
    "reason_of",
]

_NOW_SECONDS: Final = 1.0
"""What begins within so long begins now."""


_SOON_SECONDS: Final = 60.0
"""A job that leaves and begins again at its place within so long has no reason to leave."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A job that begins now."""

    job_id: int
    device: str
    """`cpu` or `cuda:N`."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is to leave where it trains, and to go on by the plan."""

    job_id: int
    why: str


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
    moves: tuple[Move, ...]
    busy: frozenset[str]
    """Devices on which jobs run."""
    reasons: dict[int, str]
    """Why jobs wait, as one clause each."""
    next_begin: float | None
    """When time alone lets another job begin: its own comes, or a window opens."""


def newly_in_time(picture: Picture, plan: Plan) -> list[int]:
    """Return the jobs that a plan has done by their deadline, and of which none has shown it yet.

    From then on they go before what has no deadline, and what came later does not make them late.
    """
    in_time = {task.task for task in plan.tasks if task.in_time}
    return [
        number
        for job in picture.jobs
        if job.key in in_time and not job.promised and (number := job_of(job.key)) is not None
    ]


def reason_of(task: TaskPlan, deadline: float | None = None) -> str:
    """Return why a task waits, as one clause; empty where it begins.

    Args:
        task: as it is planned.
        deadline: unix seconds by which it should be done.
    """
    why = _clause(task.waits)
    if task.fits:
        return f"{why}; {_late(task, deadline)}" if why and task.in_time is False else why
    return f"fits no device now: {why}; {_clause(task.remedy)}" if task.remedy else why


def could_begin(queue: QueueState, hours: Sequence[Window], now: float) -> bool:
    """Return whether a plan is of use at `now`: a job runs, or one that waits might begin."""
    opened = is_open(hours, now)
    return any(live or opened or any_time for _, live, _, _, _, any_time in queue)


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
        moves=tuple(_moves(picture, plan)),
        starts=(*starts, *_offers(picture, plan, runs, busy | {one.device for one in starts})),
        busy=busy,
        reasons=_reasons(picture, plan),
        next_begin=_next_begin(picture),
    )


def _moves(picture: Picture, plan: Plan) -> Iterator[Move]:
    places = {job.key: job.running_on for job in picture.jobs}
    for task in plan.tasks:
        number = job_of(task.task)
        if not task.moves or number is None:
            continue
        elsewhere = [device for device in task.devices if device != places[task.task]]
        later = task.begin is None or task.begin > plan.now + _SOON_SECONDS
        if elsewhere:
            why = f"goes on on {elsewhere[0]}, where all jobs together are done sooner"
            yield Move(job_id=number, why=why)
        elif later:
            why = "makes room for what is more urgent, and goes on after it"
            yield Move(job_id=number, why=why)


def _reasons(picture: Picture, plan: Plan) -> dict[int, str]:
    deadlines = {job.key: job.deadline for job in picture.jobs}
    reasons = {job_of(task.task): reason_of(task, deadlines.get(task.task)) for task in plan.tasks}
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


def _late(task: TaskPlan, deadline: float | None) -> str:
    if task.end is None or deadline is None:
        return "it will not be done by its deadline"
    minutes = math.ceil((task.end - deadline) / 60.0)
    return f"it will be done {minutes} min after its deadline"


def _clause(sentence: str) -> str:
    """Return a sentence as jobs say why they wait: without its capital and its full stop."""
    short = sentence.strip().removesuffix(".")
    return short[:1].lower() + short[1:]
