"""The order of rows: a fresh permutation every epoch, from the seed alone."""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

from slidepack.engine.contract.job import JobSpec

_T = TypeVar("_T")


def total_steps(spec: JobSpec, num_rows: int) -> int:
    """Return the optimizer steps of a run; the last batch of an epoch may be short."""
    if spec.steps:
        return spec.steps
    return max(1, math.ceil(spec.epochs * steps_per_epoch(spec, num_rows)))


def steps_per_epoch(spec: JobSpec, num_rows: int) -> int:
    """Return the batches of one pass over the rows."""
    return math.ceil(num_rows / spec.batch_size)


def rows_of_step(spec: JobSpec, rows: Sequence[_T], step: int) -> list[_T]:
    """Return the rows of a step, from 0; a pure function, so that a resumed run goes on exactly."""
    per_epoch = steps_per_epoch(spec, len(rows))
    epoch, batch = divmod(step, per_epoch)
    order = list(range(len(rows)))
    random.Random(f"{spec.seed}/{epoch}").shuffle(order)
    chosen = order[batch * spec.batch_size : (batch + 1) * spec.batch_size]
    return [rows[index] for index in chosen]
