"""How good a schedule is, and which of two is better."""

from collections.abc import Iterable
from typing import Final

import msgspec

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Placement, Schedule

__all__ = ["Score", "priority_weights", "score_of"]

_PRIORITY_WEIGHT: Final = 4.0
"""Of each priority against the next lower one: its seconds of waiting count so many times."""


class Score(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Less is better, field by field."""

    broken_promises: int
    missed_deadlines: int
    missing_value: float
    """Of what does not end by the time that is asked for, or not at all."""
    seconds: float
    """Until everything has ended; with priorities, each one's time by its weight."""
    mean_end: float
    """Between equals, the one that shows results earlier."""


def priority_weights(instance: Instance, tasks: Iterable[int]) -> dict[int, float]:
    """Return the weight of each priority's makespan; they sum to one."""
    found = sorted({instance.tasks[task].priority for task in tasks})
    weights = {priority: _PRIORITY_WEIGHT**rank for rank, priority in enumerate(found)}
    total = sum(weights.values())
    return {priority: weight / total for priority, weight in weights.items()}


def score_of(
    instance: Instance, schedule: Schedule, weights: dict[int, float], until: float
) -> Score:
    """Judge a schedule.

    Args:
        instance: the problem.
        schedule: of all its tasks.
        weights: of the priorities.
        until: open seconds by which as much value as possible should be there.
    """
    tasks, deadlines = instance.tasks, instance.deadlines
    last = dict.fromkeys(weights, 0.0)
    broken = missed = 0
    value = ends = 0.0
    for placement in schedule.placements:
        asked, end = tasks[placement.task], placement.end
        last[asked.priority] = max(last[asked.priority], end)
        ends += end
        value += asked.value * (end <= until)
        if end > deadlines[placement.task]:
            missed += 1
            broken += asked.promised
    for task in _not_ended(schedule):
        if tasks[task].deadline is not None:
            missed += 1
            broken += tasks[task].promised
    total = sum(task.value for task in tasks)
    return Score(
        broken_promises=broken,
        missed_deadlines=missed,
        # Rounded, so that the order of a sum decides nothing.
        missing_value=round(total - value, 9),
        seconds=sum(weights[priority] * end for priority, end in last.items()),
        mean_end=ends / max(1, len(schedule.placements)),
    )


def _not_ended(schedule: Schedule) -> list[int]:
    cut: list[Placement] = schedule.unfinished
    return [placement.task for placement in cut] + schedule.not_begun
