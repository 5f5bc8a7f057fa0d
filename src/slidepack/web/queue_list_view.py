"""The lists of the queue's page: who trains, who waits, who has ended. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from slidepack.daemon.planner.answer import TaskPlan
from slidepack.daemon.planning.picture import job_of
from slidepack.daemon.planning.planned_queue import PlannedQueue
from slidepack.daemon.states import JOB_STATES, LIVE, TERMINAL, JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.queue_list import WAITING, Entry, QueueFilter, QueuePage

__all__ = [
    "SHOWN",
    "Group",
    "JobRow",
    "Section",
    "Shown",
    "jobs_shown",
    "planned_tasks",
    "section_of",
    "wanted",
]

Shown = Literal["all", "live", "queued", "paused", "ended", "completed", "failed", "cancelled"]

SHOWN: Final[dict[Shown, tuple[JobState, ...]]] = {
    "all": JOB_STATES,
    "live": tuple(state for state in JOB_STATES if state in LIVE),
    "queued": ("draft", "queued"),
    "paused": ("paused",),
    "ended": tuple(state for state in JOB_STATES if state in TERMINAL),
    "completed": ("completed",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
}
"""What can be looked at, and the states that it stands for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """A job in a list."""

    job: JobRecord
    begins_at: float | None
    """By the plan, in unix seconds; None where it names no time."""
    ends_at: float | None
    """By what is left of its run, or by the plan."""
    late: bool
    """Whether that is after its deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """An entry of a list: one job, or the members of a sweep in it."""

    entry: Entry
    name: str
    rows: tuple[JobRow, ...]
    """Those that are shown: the one job, or the members of a sweep that is unfolded."""
    begins_at: float | None
    """When the first of them begins by the plan, in unix seconds."""
    ends_at: float | None
    """When the last of them ends by the plan; None where one of them does not."""

    @property
    def job_ids(self) -> str:
        """The jobs, as one text."""
        return ",".join(map(str, self.entry.job_ids))

    @property
    def states(self) -> str:
        """Of the jobs, in the same order."""
        return ",".join(self.entry.states)

    @property
    def counted(self) -> dict[str, int]:
        """How many of them are in which state, in the order of the list."""
        return {state: self.entry.states.count(state) for state in dict.fromkeys(self.entry.states)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A list, or a page of it."""

    groups: tuple[Group, ...]
    total: int
    """Entries on all pages."""
    page: int
    """From 1 on."""
    pages: int
    next_job: int | None
    """The first job of the next page."""


def wanted(shown: Shown, text: str) -> QueueFilter:
    """Return which jobs a page looks at."""
    return QueueFilter(states=SHOWN[shown], text=text)


def planned_tasks(planned: PlannedQueue | None) -> dict[int | None, TaskPlan]:
    """Return what becomes of each job by the newest plan."""
    return {} if planned is None else {job_of(task.task): task for task in planned.plan.tasks}


def jobs_shown(found: QueuePage, opened: frozenset[int]) -> list[int]:
    """Return the jobs of which a page shows all: of a folded sweep none."""
    return [
        job
        for entry in found.entries
        if entry.sweep_id is None or entry.sweep_id in opened
        for job in entry.job_ids
    ]


def section_of(
    found: QueuePage,
    jobs: Mapping[int, JobRecord],
    *,
    names: Mapping[int, str],
    tasks: Mapping[int | None, TaskPlan],
    now: float,
    page: int,
    per_page: int,
) -> Section:
    """Return a page of a list.

    Args:
        found: its entries.
        jobs: those that it shows, by id; one that is gone by now is left out.
        names: of sweeps.
        tasks: what becomes of jobs by the plan.
        now: unix seconds.
        page: its number, from 1 on.
        per_page: entries on each.
    """
    groups = (_group(entry, jobs, names, tasks, now) for entry in found.entries)
    return Section(
        groups=tuple(group for group in groups if group.rows or group.entry.sweep_id is not None),
        total=found.total,
        page=page,
        pages=max(1, -(-found.total // per_page)),
        next_job=found.next_job,
    )


def _group(
    entry: Entry,
    jobs: Mapping[int, JobRecord],
    names: Mapping[int, str],
    tasks: Mapping[int | None, TaskPlan],
    now: float,
) -> Group:
    rows = tuple(_row(jobs[job], tasks.get(job), now) for job in entry.job_ids if job in jobs)
    planned = [tasks.get(job) for job in entry.job_ids]
    begins = [task.begin for task in planned if task is not None and task.begin is not None]
    ends = [task.end for task in planned if task is not None and task.end is not None]
    name = "" if entry.sweep_id is None else names.get(entry.sweep_id, "")
    return Group(
        entry=entry,
        name=name or "".join(row.job.name for row in rows[:1]),
        rows=rows,
        begins_at=min(begins, default=None),
        ends_at=max(ends) if ends and len(ends) == len(planned) else None,
    )


def _row(job: JobRecord, task: TaskPlan | None, now: float) -> JobRow:
    begins_at = ends_at = None
    if job.state == "running" and job.eta_seconds is not None:
        # What a run has measured of itself is newer than any plan.
        ends_at = now + job.eta_seconds
    elif task is not None and not job.terminal and job.state != "paused":
        begins_at = task.begin if job.state in WAITING else None
        ends_at = task.end
    late = job.deadline is not None and ends_at is not None and ends_at > job.deadline
    return JobRow(job=job, begins_at=begins_at, ends_at=ends_at, late=late)
