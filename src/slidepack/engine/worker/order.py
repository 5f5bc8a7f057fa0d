"""The order of rows: a fresh permutation every epoch, from the seed alone."""

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from slidepack.engine.contract.job import JobSpec

_T = TypeVar("_T")


def total_steps(spec: JobSpec, num_rows: int) -> int:
    """Return the optimizer steps of a run; the last batch of an epoch may be short."""
    if spec.steps:
        return spec.steps
    # 1.1 epochs of 10 batches are 11 steps, not the 12 of 11.000000000000002.
    return max(1, math.ceil(round(spec.epochs * steps_per_epoch(spec, num_rows), 6)))


def steps_per_epoch(spec: JobSpec, num_rows: int) -> int:
    """Return the batches of one pass over the rows."""
    return math.ceil(num_rows / spec.batch_size)


def rows_of_step(spec: JobSpec, rows: Sequence[_T], step: int) -> list[_T]:
    """Return the rows of a step, from 0; a pure function, so that a resumed run goes on exactly."""
    per_epoch = steps_per_epoch(spec, len(rows))
    epoch, batch = divmod(step, per_epoch)
    order = _epoch_order(spec.seed, epoch, len(rows))
    chosen = order[batch * spec.batch_size : (batch + 1) * spec.batch_size]
    return [rows[index] for index in chosen]


@lru_cache(maxsize=1)
def _epoch_order(seed: int, epoch: int, num_rows: int) -> list[int]:
    """Return the permutation of an epoch; kept, because a step asks for a few rows of it."""
    order = list(range(num_rows))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
