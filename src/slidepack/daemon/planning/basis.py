"""What a plan rests on: while that is the same, the plan holds. Pure."""

import math

from slidepack.daemon.planning.open_hours import is_open
from slidepack.daemon.planning.picture import Picture, PlannedJob

__all__ = ["basis"]


def basis(picture: Picture) -> tuple[object, ...]:
    """Return what a new plan would be made for; that steps were done and time passed is not it."""
    return (
        picture.queue,
        tuple(map(_of_job, picture.jobs)),
        picture.devices,
        tuple(window.end for window in picture.windows),
        is_open(picture.windows, picture.now),
        tuple(sorted(picture.unplanned)),
        picture.waiting,
    )


def _of_job(job: PlannedJob) -> tuple[object, ...]:
    # Tokens by steps of a fifth: their average moves a little with each step.
    tokens = round(4.0 * math.log2(max(1.0, job.row_tokens)))
    reports = job.seconds_left is not None
    return (job.key, job.running_on, reports, job.after, job.not_before, job.deadline, tokens)
