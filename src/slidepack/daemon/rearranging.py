"""What users do to the queue as a whole: several jobs at once, their places, and their times."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from slidepack.daemon.duplicating import duplicate
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.queue_order import place_jobs
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = [
    "MOST_AT_ONCE",
    "Action",
    "BatchRequest",
    "MoveManyRequest",
    "Outcome",
    "RescheduleRequest",
    "act_on",
    "move_jobs",
    "reschedule",
]

MOST_AT_ONCE: Final = 1000

Action = Literal[
    "pause", "resume", "cancel", "retry", "duplicate", "delete", "now", "tonight", "auto"
]


class MoveManyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the queue jobs go."""

    jobs: tuple[int, ...]
    """In the order in which they are to stand."""
    before: int | None = None
    """Right before this job, which is none of them; they take its priority. None is the end."""
    first: bool = False
    """Before all others that wait; then `before` says nothing."""


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for several jobs."""

    action: Action
    """`now`, `tonight` and `auto` change when they may start, as in a request of a job."""
    jobs: tuple[int, ...]


class RescheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a job's place in time; what is left out stays."""

    priority: int | msgspec.UnsetType = msgspec.UNSET
    start: Literal["auto", "now", "tonight"] | msgspec.UnsetType = msgspec.UNSET
    """`auto` keeps to the policy's windows, `now` does not, `tonight` waits for the next one. Each
    also ends an earlier wish to wait, as `not_before`."""
    not_before: float | msgspec.UnsetType | None = msgspec.UNSET
    """Unix time in seconds before which it does not start; None for no such time."""
    deadline: float | msgspec.UnsetType | None = msgspec.UNSET
    """Unix time in seconds by which it should be done; None for no such time."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job of several."""

    id: int
    job: JobRecord | None
    """As it is now, or the new one of a retry and a duplicate; None where it was refused or is
    gone."""
    error: ErrorReport | None
    """Why it was refused."""


def move_jobs(service: Service, request: MoveManyRequest) -> list[JobRecord]:
    """Give jobs other places in the queue, all or none.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-STATE where one of them has ended, RUN-SPEC-INVALID.
    """
    _require_distinct(request.jobs)
    if request.before in request.jobs:
        raise _invalid(f"job {request.before} is to stand before itself")
    if request.first and request.before is not None:
        raise _invalid("it says both `first` and `before`")
    with service.database.transaction():
        for job_id in (*request.jobs, *(() if request.before is None else (request.before,))):
            _require_unended(service.jobs.get(job_id), "moved")
        before = _first_but(service, request.jobs) if request.first else request.before
        # Those that are alone in the queue are its first already.
        if not request.first or before is not None:
            place_jobs(service.database, request.jobs, before)
    service.changes.bump()
    return [service.jobs.get(job_id) for job_id in request.jobs]


def _first_but(service: Service, moved: Sequence[int]) -> int | None:
    """Return the first job that waits and is not moved itself."""
    waiting = service.jobs.waiting_first(len(moved) + 1)
    return next((job.id for job in waiting if job.id not in moved), None)


def reschedule(service: Service, job_id: int, request: RescheduleRequest) -> JobRecord:
    """Change when a job that has not ended may run, or its priority.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has ended, RUN-SPEC-INVALID.
    """
    now = time.time()
    with service.database.transaction():
        job = service.jobs.get(job_id)
        _require_unended(job, "rescheduled")
        service.jobs.set_timing(job_id, _timing(job, request, service.policy.tonight(now)))
    service.changes.bump()
    return service.jobs.get(job_id)


def act_on(service: Service, request: BatchRequest) -> list[Outcome]:
    """Do the same to several jobs, one after the other; what one refuses stops no other.

    Raises:
        SlidepackError: RUN-SPEC-INVALID where no job is named, one twice, or too many.
    """
    _require_distinct(request.jobs)
    command = _command(service, request.action)
    return [_outcome(command, job_id) for job_id in request.jobs]


def _command(service: Service, action: Action) -> Callable[[int], JobRecord | None]:
    def delete(job_id: int) -> None:
        service.queue.remove(job_id)

    def start(job_id: int) -> JobRecord:
        assert action in ("now", "tonight", "auto")
        return reschedule(service, job_id, RescheduleRequest(start=action))

    commands: dict[Action, Callable[[int], JobRecord | None]] = {
        "pause": service.queue.pause,
        "resume": service.queue.resume,
        "cancel": service.queue.cancel,
        "retry": service.queue.retry,
        "duplicate": lambda job_id: duplicate(service, job_id),
        "delete": delete,
        "now": start,
        "tonight": start,
        "auto": start,
    }
    return commands[action]


def _outcome(command: Callable[[int], JobRecord | None], job_id: int) -> Outcome:
    try:
        return Outcome(id=job_id, job=command(job_id), error=None)
    except SlidepackError as error:
        return Outcome(id=job_id, job=None, error=error.report)


def _timing(job: JobRecord, request: RescheduleRequest, tonight: float) -> JobTiming:
    any_time, not_before = job.any_time, job.not_before
    if request.start is not msgspec.UNSET:
        any_time = request.start == "now"
        not_before = tonight if request.start == "tonight" else None
    if request.not_before is not msgspec.UNSET:
        not_before = request.not_before
    try:
        return JobTiming(
            priority=job.priority if request.priority is msgspec.UNSET else request.priority,
            not_before=not_before,
            deadline=job.deadline if request.deadline is msgspec.UNSET else request.deadline,
            any_time=any_time,
        )
    except ValueError as error:
        raise _invalid(str(error)) from error


def _require_distinct(jobs: Sequence[int]) -> None:
    if not jobs:
        raise _invalid("no job is named")
    if len(set(jobs)) != len(jobs):
        raise _invalid("a job is named twice")
    if len(jobs) > MOST_AT_ONCE:
        raise _invalid(f"{len(jobs)} jobs are named; use at most {MOST_AT_ONCE} at once")


def _require_unended(job: JobRecord, verb: str) -> None:
    if job.terminal:
        raise SlidepackError(
            "RUN-STATE",
            f"Job {job.id} cannot be {verb}.",
            why=f"it is {job.state}",
            fix="Queue it again: `slidepack jobs retry`.",
        )


def _invalid(why: str) -> SlidepackError:
    return SlidepackError(
        "RUN-SPEC-INVALID", "The queue cannot be changed so.", why=why, fix="Change what is named."
    )
