"""What a plan promises of the jobs that train, to be held against what happens. Pure."""

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planning.picture import Picture, job_of
from slidepack.daemon.planning.request import cost_key
from slidepack.daemon.store.costs import Promise

__all__ = ["promises_of"]


def promises_of(picture: Picture, plan: Plan) -> list[Promise]:
    """Return when the plan ends the jobs that have reported a step.

    From then on a job is predicted by what it costs: how long it waits, how long its rows take to
    tokenise and its model to load are no part of it, and what is evaluated and saved at the end
    counts as an error.
    """
    ends = {task.task: task.end for task in plan.tasks}
    names = {device.key: device.name for device in picture.devices}
    found = []
    for job in picture.jobs:
        number, end = job_of(job.key), ends.get(job.key)
        if job.seconds_left is None or number is None or end is None:
            continue
        found.append(
            Promise(
                job_id=number,
                device=names.get(job.running_on, job.running_on),
                model=cost_key(job.spec, job.running_on),
                seat=job.running_on,
                end=end,
            )
        )
    return found
