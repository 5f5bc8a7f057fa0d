"""The assignment of tasks to seats as a program: unrelated devices, with what packing shares.

For each seat and base, the steps of its packs are counted: no fewer than the longest task has, nor
than all have together over as many lanes as are allowed, or as the memory holds. A step costs no
less than either of the two lines of its cost. So no plan is shorter than the program's bound; a
plan that follows its assignment comes near, and is simulated like any other.

With a horizon the same rows choose the most value that ends within it (a knapsack).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.bounds import FLOOR_SHARES, memory_share, parts_of_step, unit_seconds
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Milp, Solved, Solver

__all__ = ["Assignment", "assign", "modelled_seconds"]

_MOST_STEP_ROWS: Final = 2500
"""More would slow the solver down more than they tell it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What the solver found."""

    seat_of: tuple[int, ...] | None
    """Seat of each task, -1 for those left out; None where it found nothing."""
    objective: float
    """Open seconds, or the value that ends within the horizon."""
    bound: float
    """No plan is shorter, or none is worth more."""
    optimal: bool


def modelled_seconds(instance: Instance, tasks: Sequence[int], seat_of: Sequence[int]) -> float:
    """Return the open seconds that the program counts for an assignment."""
    program = _program(instance, tasks, None, [1.0] * len(instance.seats))
    assert program.makespan is not None
    return _values_of(program, seat_of)[program.makespan]


@dataclass(slots=True)
class _Program:
    milp: Milp
    makespan: int | None
    chosen: dict[tuple[int, int], int]
    """Column by task and seat."""
    steps: dict[tuple[int, str], int]
    """Column of the steps of packs, by seat and base."""
    loads: dict[tuple[int, str], int]


def assign(
    instance: Instance,
    tasks: Sequence[int],
    solver: Solver,
    *,
    seconds: float,
    start: Sequence[int] | None = None,
    horizon: float | None = None,
    slack: Sequence[float] | None = None,
) -> Assignment:
    """Assign tasks to seats.

    Args:
        instance: the problem.
        tasks: all of which fit somewhere.
        solver: of the program.
        seconds: it may take.
        start: seat of each task to begin with.
        horizon: open seconds; None asks for all tasks in the shortest time.
        slack: by how much packs on each seat are longer than the program says; with it the bound
            is one of this program only.
    """
    program = _program(instance, tasks, horizon, slack or [1.0] * len(instance.seats))
    first = None if start is None else _values_of(program, start)
    solved = solver.solve(program.milp, seconds=seconds, start=first)
    sign = 1.0 if horizon is None else -1.0
    return Assignment(
        seat_of=_seats(instance, program, solved),
        objective=sign * solved.objective,
        bound=sign * solved.dual_bound,
        optimal=solved.optimal,
    )


def _program(
    instance: Instance, tasks: Sequence[int], horizon: float | None, slack: Sequence[float]
) -> _Program:
    milp = Milp()
    makespan = milp.column(cost=1.0) if horizon is None else None
    program = _Program(milp, makespan, {}, {}, {})
    for task in tasks:
        _add_task(instance, program, task, horizon, slack)
    for seat, model in program.steps:
        _add_pack(instance, program, tasks, seat, model, slack[seat])
    for device in range(len(instance.devices)):
        busy = _busy(instance, program, device, slack)
        if not busy:
            continue
        if makespan is None:
            milp.row(busy, upper=horizon or 0.0)
        else:
            milp.row([*busy, (makespan, -1.0)], upper=0.0)
    return program


def _add_task(
    instance: Instance,
    program: _Program,
    task: int,
    horizon: float | None,
    slack: Sequence[float],
) -> None:
    milp, asked = program.milp, instance.tasks[task]
    terms = []
    running = instance.running_seat[task]
    for seat in instance.fitting[task] if running is None else (running,):
        alone = instance.solo_seconds(task, seat)
        if horizon is not None and alone * slack[seat] > horizon:
            continue
        cost = 0.0 if horizon is None else -asked.value
        column = milp.column(cost=cost, upper=1.0, integer=True)
        program.chosen[task, seat] = column
        terms.append((column, 1.0))
        if program.makespan is not None:
            milp.row([(column, alone), (program.makespan, -1.0)], upper=0.0)
        if asked.full is None and (seat, asked.model) not in program.steps:
            program.steps[seat, asked.model] = milp.column()
            program.loads[seat, asked.model] = milp.column()
    if terms:
        milp.row(terms, lower=1.0 if horizon is None else 0.0, upper=1.0)


def _add_pack(
    instance: Instance,
    program: _Program,
    tasks: Sequence[int],
    seat: int,
    model: str,
    slack: float,
) -> None:
    """Add the rows of the packs of a base on a seat."""
    milp = program.milp
    steps, load = program.steps[seat, model], program.loads[seat, model]
    here = [
        (task, program.chosen[task, seat])
        for task in tasks
        if (task, seat) in program.chosen and instance.tasks[task].model == model
    ]
    base = instance.seats[seat].bases[model]
    counts = {task: float(instance.tasks[task].steps) for task, _ in here}
    lanes = instance.seats[seat].max_lanes or len(tasks)
    milp.row([(steps, -1.0), *((c, counts[k] / lanes) for k, c in here)], upper=0.0)
    shares = [(c, counts[k] * memory_share(instance, k, seat)) for k, c in here]
    milp.row([(steps, -1.0), *shares], upper=0.0)
    longest = sorted(here, key=lambda entry: -counts[entry[0]])
    for task, column in longest[: max(1, _MOST_STEP_ROWS // len(program.steps))]:
        milp.row([(steps, -1.0), (column, counts[task])], upper=0.0)
    for floor_share in FLOOR_SHARES:
        terms = [(load, -1.0)]
        for task, column in here:
            unit = unit_seconds(instance, task, seat, "memory", floor_share)
            terms.append((column, counts[task] * unit * slack))
        milp.row(terms, upper=0.0)
    for at_floor in (False, True):
        of_step, of_tokens = parts_of_step(base, at_floor=at_floor)
        terms = [(load, -1.0), (steps, of_step * slack)]
        for task, column in here:
            each = of_tokens * instance.tasks[task].tokens + base.cost.lane_seconds
            terms.append((column, counts[task] * each * slack))
        milp.row(terms, upper=0.0)


def _busy(
    instance: Instance, program: _Program, device: int, slack: Sequence[float]
) -> list[tuple[int, float]]:
    """Return the terms of a device's seconds of work, alone and in groups."""
    of_device = {n for n, seat in enumerate(instance.seats) if device in seat.devices}
    packs = [(load, 1.0) for (seat, _), load in program.loads.items() if seat in of_device]
    return packs + [
        (column, instance.solo_seconds(task, seat) * slack[seat])
        for (task, seat), column in program.chosen.items()
        if seat in of_device and instance.tasks[task].full is not None
    ]


def _seats(instance: Instance, program: _Program, solved: Solved) -> tuple[int, ...] | None:
    if solved.values is None:
        return None
    seat_of = [-1] * len(instance.tasks)
    for (task, seat), column in program.chosen.items():
        if solved.values[column] > 0.5:
            seat_of[task] = seat
    return tuple(seat_of)


def _values_of(program: _Program, start: Sequence[int]) -> list[float]:
    """Return the values of all columns for an assignment."""
    milp = program.milp
    values = [0.0] * len(milp.costs)
    for (task, seat), column in program.chosen.items():
        values[column] = float(start[task] == seat)
    # Each of these is bounded from below by rows of what was set before it, so the rows say it all.
    derived = [*program.steps.values(), *program.loads.values()]
    if program.makespan is not None:
        derived.append(program.makespan)
    for column in derived:
        values[column] = _least(milp, column, values)
    return values


def _least(milp: Milp, column: int, values: Sequence[float]) -> float:
    """Return the least value of a column in whose rows it stands with -1."""
    return max(
        (
            sum(factor * values[other] for other, factor in row if other != column)
            for row in milp.rows
            if (column, -1.0) in row
        ),
        default=0.0,
    )
