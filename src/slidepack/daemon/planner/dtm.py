"""Decomposed Throughput Maximisation, PLoRA's planner, for one device a job: for comparison.

Whenever a device is free, the set of adapters is packed that maximises the sum of their ranks a
second, and it runs as a static job: what ends leaves its place empty until the last one has ended.
The ratio is maximised by Dinkelbach's method, a few programs for each job.
"""

import heapq
from collections.abc import Sequence
from typing import Final

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Milp, Solver
from slidepack.daemon.planner.seats import Seat

__all__ = ["dtm_seconds"]

_ITERATIONS: Final = 6
_CLOSE: Final = 1e-6


def dtm_seconds(instance: Instance, solver: Solver, *, seconds_per_program: float) -> float:
    """Return the makespan of the paper's planner.

    Args:
        instance: lanes of one base that all fit, with no windows and no dependencies.
        solver: of the programs.
        seconds_per_program: that it may take.
    """
    left = list(range(len(instance.tasks)))
    free = [(0.0, seat) for seat, found in enumerate(instance.seats) if found.degree == 1]
    heapq.heapify(free)
    end = 0.0
    while left:
        now, seat = heapq.heappop(free)
        here = [task for task in left if seat in instance.fitting[task]]
        if not here:
            continue
        job = _best_job(instance, here, seat, solver, seconds_per_program)
        left = [task for task in left if task not in job]
        done = now + _static_seconds(instance, job, seat)
        end = max(end, done)
        heapq.heappush(free, (done, seat))
    return end


def _best_job(
    instance: Instance, tasks: Sequence[int], seat: int, solver: Solver, seconds: float
) -> list[int]:
    """Return the tasks with the most rank a second together."""
    best = [max(tasks, key=lambda task: _ratio(instance, [task], seat))]
    ratio = _ratio(instance, best, seat)
    for _ in range(_ITERATIONS):
        milp = _program(instance, tasks, seat, ratio)
        solved = solver.solve(milp, seconds=seconds)
        if solved.values is None:
            break
        chosen = [task for task, value in zip(tasks, solved.values, strict=False) if value > 0.5]
        if not chosen or _ratio(instance, chosen, seat) <= ratio * (1.0 + _CLOSE):
            break
        best, ratio = chosen, _ratio(instance, chosen, seat)
    return best


def _ratio(instance: Instance, tasks: Sequence[int], seat: int) -> float:
    return sum(instance.tasks[task].params for task in tasks) / _step(instance, tasks, seat)


def _step(instance: Instance, tasks: Sequence[int], seat: int) -> float:
    tokens = sum(instance.tasks[task].tokens for task in tasks)
    return instance.base(tasks[0], seat).cost.seconds(tokens, len(tasks))


def _program(instance: Instance, tasks: Sequence[int], seat: int, ratio: float) -> Milp:
    """Return: minimise the ratio times the step, less the ranks, within the memory."""
    milp, found = Milp(), instance.seats[seat]
    base, cost = instance.base(tasks[0], seat), instance.base(tasks[0], seat).cost
    chosen = [
        milp.column(
            cost=ratio * cost.lane_seconds - instance.tasks[task].params, upper=1.0, integer=True
        )
        for task in tasks
    ]
    step = milp.column(cost=ratio)
    milp.row([(step, 1.0)], lower=cost.floor_seconds)
    tokens = [
        (column, -cost.token_seconds * instance.tasks[task].tokens)
        for task, column in zip(tasks, chosen, strict=True)
    ]
    milp.row([(step, 1.0), *tokens], lower=cost.token_seconds * cost.fixed_tokens)
    room = found.memory_bytes - base.fixed_bytes - _rows_bytes(instance, tasks, found)
    params = [
        (column, instance.tasks[task].params * base.bytes_per_param)
        for task, column in zip(tasks, chosen, strict=True)
    ]
    milp.row(params, upper=float(room))
    lanes = found.max_lanes or len(tasks)
    milp.row([(column, 1.0) for column in chosen], lower=1.0, upper=float(lanes))
    return milp


def _rows_bytes(instance: Instance, tasks: Sequence[int], seat: Seat) -> int:
    base = seat.bases[instance.tasks[tasks[0]].model]
    return base.recompute.of(max(instance.rows[task] for task in tasks))


def _static_seconds(instance: Instance, job: Sequence[int], seat: int) -> float:
    """Return how long a job takes whose places stay empty once their lanes have ended."""
    ranked = sorted(job, key=lambda task: instance.tasks[task].steps)
    total, done = instance.startup_seconds(job[0], seat), 0
    for number, task in enumerate(ranked):
        steps = instance.tasks[task].steps - done
        if steps:
            total += steps * _step(instance, ranked[number:], seat)
            done = instance.tasks[task].steps
    return total
