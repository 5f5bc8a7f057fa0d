"""The greedy plan improved by a solver. What counts is the simulation, never the objective: the
judge keeps the better one of both."""

import math
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.assignment import Assignment, assign
from slidepack.daemon.planner.greedy import Judge
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Solver
from slidepack.daemon.planner.search import separable, tune_seats

__all__ = ["improve", "is_mixed"]

_ROUNDS: Final = 3
"""Assignments, each with what the simulation of the one before it says of the packs' efficiency."""
_FIRST_SHARE: Final = 0.5
"""Of the solver's time for the first, whose bound is shown."""
_HORIZONS: Final = (1.0, 0.97, 0.93, 0.88, 0.8)
"""Shares of the night that are filled: what is chosen for all of it may not quite end."""


def is_mixed(instance: Instance) -> bool:
    """Return whether it matters which device takes a task: equal ones are filled as well without
    a solver."""
    first = instance.seats[0]
    return any(
        seat.bases != first.bases or seat.memory_bytes != first.memory_bytes
        for seat in instance.seats[1:]
    )


def improve(judge: Judge, solver: Solver, *, seconds: float) -> float | None:
    """Let the solver assign tasks to seats, and simulate what it says.

    Args:
        judge: with the best plan so far.
        solver: of the programs.
        seconds: that it may take.

    Returns:
        A lower bound of the open seconds of all tasks that fit; None where none was proved.
    """
    instance = judge.instance
    tasks = [task for task in range(len(instance.tasks)) if _can_run(instance, task)]
    if not tasks:
        return None
    score, _, _ = judge.found()
    if judge.until < math.inf and score.missing_value > 0.0:
        _fill_night(judge, solver, tasks, seconds)
        return None
    return _share_out(judge, solver, tasks, seconds)


def _can_run(instance: Instance, task: int) -> bool:
    waits = instance.missing[task] or task in instance.circular
    return bool(instance.fitting[task]) and not waits


def _share_out(judge: Judge, solver: Solver, tasks: list[int], seconds: float) -> float | None:
    instance = judge.instance
    slack = [1.0] * len(instance.seats)
    bound: float | None = None
    for number in range(_ROUNDS):
        if judge.out_of_time():
            break
        share = _FIRST_SHARE if number == 0 else (1.0 - _FIRST_SHARE) / (_ROUNDS - 1)
        found = assign(
            instance,
            tasks,
            solver,
            seconds=seconds * share,
            start=_seats_now(judge),
            slack=slack,
        )
        pinned = any(seat is not None for seat in instance.running_seat)
        if number == 0 and found.bound > 0.0 and not pinned:
            bound = found.bound
        if found.seat_of is None:
            break
        slack = _try_assignment(judge, found, slack)
    return bound


def _try_assignment(judge: Judge, found: Assignment, slack: list[float]) -> list[float]:
    """Simulate an assignment; return how much longer than said the packs of each seat take."""
    assert found.seat_of is not None
    instance = judge.instance
    if separable(instance, [seat for seat in found.seat_of if seat >= 0]):
        ends = tune_seats(judge, found.seat_of)
        busiest = max(ends)
        if busiest == 0.0 or found.objective <= 0.0:
            return slack
        # A seat that ends late gets less of the next assignment, and one that ends early more.
        return [
            max(1.0, old * (end / found.objective) ** 0.5) if end > 0.0 else old
            for old, end in zip(slack, ends, strict=True)
        ]
    _, best, _ = judge.found()
    for factors in {best.cap_factors, ()}:
        judge.try_out(replace(best, seat_of=found.seat_of, cap_factors=factors))
    return slack


def _fill_night(judge: Judge, solver: Solver, tasks: list[int], seconds: float) -> None:
    """Choose what is worth most by the time that is asked for; the rest comes after it."""
    instance = judge.instance
    for share in _HORIZONS:
        if judge.out_of_time():
            return
        found = assign(
            instance,
            tasks,
            solver,
            seconds=seconds / len(_HORIZONS),
            start=_seats_now(judge),
            horizon=judge.until * share,
        )
        if found.seat_of is None:
            continue
        seat_of = found.seat_of
        _, best, _ = judge.found()
        first = sorted(
            (task for task in tasks if seat_of[task] >= 0),
            key=lambda task: -instance.tasks[task].steps,
        )
        chosen = set(first)
        order = (*first, *(task for task in best.order if task not in chosen))
        for factors in {best.cap_factors, ()}:
            judge.try_out(
                replace(best, order=order, seat_of=seat_of, cap_factors=factors, max_lanes=0)
            )
            judge.try_out(replace(best, order=order, seat_of=None, cap_factors=factors))


def _seats_now(judge: Judge) -> list[int]:
    """Return where the best plan puts each task, -1 where it puts it nowhere."""
    _, _, schedule = judge.found()
    seats = [-1] * len(judge.instance.tasks)
    for placement in (*schedule.placements, *schedule.unfinished):
        seats[placement.task] = placement.seat
    return seats
