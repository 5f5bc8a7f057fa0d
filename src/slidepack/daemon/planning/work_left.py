"""How much of a job is left: its steps. Pure."""

import math

from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.job import JobSpec

__all__ = ["expected_rows", "steps_in_all", "steps_left"]


def expected_rows(spec: JobSpec, accepted_rows: int) -> float:
    """Return the rows of a dataset that a job trains, beside those that it holds out."""
    held_out = spec.eval.test_fraction
    if spec.eval.selection is None:
        held_out += spec.eval.selection_fraction
    return accepted_rows * (1.0 - held_out)


def steps_in_all(spec: JobSpec, train_rows: float) -> int:
    """Return the optimizer steps of a job, as its worker will count them.

    Args:
        spec: of the job.
        train_rows: that it is expected to train on.
    """
    if spec.steps:
        return spec.steps
    per_epoch = max(1, math.ceil(round(train_rows / spec.batch_size, 6)))
    return max(1, math.ceil(round(spec.epochs * per_epoch, 6)))


def steps_left(job: JobRecord, spec: JobSpec, train_rows: float) -> int:
    """Return the steps that a job still has to do, at least one: a job that is there has work.

    What its worker has said counts; before that, what is expected.
    """
    in_all = job.total_steps or steps_in_all(spec, train_rows)
    return max(1, in_all - job.step)
