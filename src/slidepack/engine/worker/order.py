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
    # 1.1 epochs of 10 batches are 11 steps, not the 12 of 11.000000000000002.
    return max(1, math.ceil(round(spec.epochs * steps_per_epoch(spec, num_rows), 6)))


def steps_per_epoch(spec: JobSpec, num_rows: int) -> int:
    """Return the batches of one pass over the rows."""
    return math.ceil(num_rows / spec.batch_size)


class RowOrder:
    """The order of a run's rows: a pure function of the seed, so a resumed run goes on exactly."""

    def __init__(self, spec: JobSpec) -> None:
        """Bind a run."""
        self._spec = spec
        # A step asks for a few rows of it, and the rows of the next step are asked for ahead.
        self._orders: dict[tuple[int, int], list[int]] = {}

    def rows_of_step(self, rows: Sequence[_T], step: int) -> list[_T]:
        """Return the rows of a step, from 0."""
        size = self._spec.batch_size
        epoch, batch = divmod(step, steps_per_epoch(self._spec, len(rows)))
        order = self._order(epoch, len(rows))
        return [rows[index] for index in order[batch * size : (batch + 1) * size]]

    def _order(self, epoch: int, num_rows: int) -> list[int]:
        key = (epoch, num_rows)
        if key not in self._orders:
            self._orders = dict(list(self._orders.items())[-1:])
            order = list(range(num_rows))
            random.Random(f"{self._spec.seed}/{epoch}").shuffle(order)
            self._orders[key] = order
        return self._orders[key]


def rows_of_step(spec: JobSpec, rows: Sequence[_T], step: int) -> list[_T]:
    """Return the rows of a single step, from 0."""
    return RowOrder(spec).rows_of_step(rows, step)
