"""The greedy plan improved by a solver. What counts is the simulation, never the objective: the
judge keeps the better one of both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.assignment import assign
from slidepack.daemon.planner.generation import generate
from slidepack.daemon.planner.greedy import Judge
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Solver
from slidepack.daemon.planner.packing import Layout, Pack, packs_of
from slidepack.daemon.planner.parts import separable
from slidepack.daemon.planner.search import search_from
from slidepack.daemon.planner.sharing import Shares, deal, orders_by_packs, share_out

__all__ = ["improve"]

_PLAY_SHARE: Final = 0.4
"""Of the solver's time, for what comes after the packs are found."""
_ASSIGNMENT_SHARE: Final = 0.15
"""Of what is left then, for an assignment that knows of no packs: it is quick, and where tasks are
few its bound may be the better one."""
_CHANGES_TIMES_TASKS: Final = 60_000
"""Changes that are tried from each plan, fewer where each takes longer: the best plan before may be
one that no change makes better."""
_PROGRAM_SHARE: Final = 0.5
"""Of what is left each time, for sharing tasks out."""
_HORIZONS: Final = (1.0, 0.97, 0.93, 0.88, 0.8)
"""Shares of the night that are filled: what is chosen for all of it may not quite end."""


def improve(
    judge: Judge, solver: Solver, *, seed: int, seconds_left: Callable[[], float]
) -> float | None:
    """Let the solver assign tasks to seats, and simulate what it says.

    Args:
        judge: with the best plan so far.
        solver: of the programs.
        seed: of the changes that are tried from what it says.
        seconds_left: of its time; it always says the same where time is no matter.

    Returns:
        A lower bound of the open seconds of all tasks that fit; None where none was proved.
    """
    instance = judge.instance
    tasks = [task for task in range(len(instance.tasks)) if _can_run(instance, task)]
    if not tasks:
        return None
    score, _, _ = judge.found()
    if judge.until < math.inf and score.missing_value > 0.0:
        _fill_night(judge, solver, tasks, seconds_left())
        return None
    bound = _share_out(judge, solver, tasks, seed, seconds_left)
    return bound if bound > 0.0 else None


def _can_run(instance: Instance, task: int) -> bool:
    waits = instance.missing[task] or task in instance.circular
    return bool(instance.fitting[task]) and not waits


def _share_out(
    judge: Judge,
    solver: Solver,
    tasks: list[int],
    seed: int,
    seconds_left: Callable[[], float],
) -> float:
    """Try what the programs say; return their bound, 0 where it holds only if nothing moves."""
    layout = Layout(judge.instance, tasks)
    _, _, schedule = judge.found()
    later = _PLAY_SHARE * seconds_left()
    made = generate(
        layout,
        solver,
        packs_of(layout, schedule),
        seconds_left=lambda: seconds_left() - later,
    )
    found = assign(
        judge.instance,
        tasks,
        solver,
        seconds=_ASSIGNMENT_SHARE * seconds_left(),
        start=_seats_now(judge),
    )
    bound = max(0.0, found.bound, made.bound)
    if any(seat is not None for seat in judge.instance.running_seat):
        bound = 0.0
    judge.learn(bound)
    if found.seat_of is not None:
        _try_assignment(judge, found.seat_of, {}, seed)
    _play(judge, solver, layout, made.packs, seed, seconds_left)
    return bound


def _play(
    judge: Judge,
    solver: Solver,
    layout: Layout,
    packs: Sequence[Pack],
    seed: int,
    seconds_left: Callable[[], float],
) -> None:
    """Share the tasks out by packs: whole, and as parts, which is quick and may be as good rounded.

    What the simulation says of the packs' efficiency on each place counts the next time.
    """
    slack = [1.0] * len(layout.places)
    for whole in (True, False, True):
        if seconds_left() <= 0.0 or judge.enough():
            return
        _, _, schedule = judge.found()
        shares = share_out(
            layout,
            packs,
            solver,
            seconds=_PROGRAM_SHARE * seconds_left(),
            slack=slack,
            whole=whole,
            longest=schedule.makespan,
        )
        if shares is None:
            continue
        ends = _try_shares(judge, layout, shares, seed)
        if ends is not None and whole:
            slack = _corrected(layout, shares, slack, ends)


def _try_shares(judge: Judge, layout: Layout, shares: Shares, seed: int) -> list[float] | None:
    """Simulate shares; return when each seat ends, where that tells how good they are."""
    _, best, _ = judge.found()
    rank = [0] * len(layout.instance.tasks)
    for at, task in enumerate(best.order):
        rank[task] = at
    seat_of = deal(layout, shares, rank)
    proposed = {
        seat: orders_by_packs(
            layout, shares, seat, [task for task in best.order if seat_of[task] == seat]
        )
        for seat in set(seat_of)
        if seat >= 0
    }
    return _try_assignment(judge, seat_of, proposed, seed)


def _corrected(
    layout: Layout, shares: Shares, slack: Sequence[float], ends: Sequence[float]
) -> list[float]:
    """Return by how much packs take longer than they say, as the simulation saw it."""
    said = [0.0] * len(layout.places)
    for pack, steps in shares.packs:
        said[pack.place] += pack.seconds * steps
    found = list(slack)
    for number, place in enumerate(layout.places):
        took = sum(ends[seat] for seat in place.seats)
        if took > 0.0 and said[number] > 0.0:
            # Half of it: with other tasks the next time, it may be another.
            found[number] = max(1.0, (slack[number] * took / said[number]) ** 0.5)
    return found


def _try_assignment(
    judge: Judge,
    seat_of: tuple[int, ...],
    proposed: dict[int, list[tuple[int, ...]]],
    seed: int,
) -> list[float] | None:
    """Simulate an assignment; return when each seat ends, where seats are apart from each other."""
    if separable(judge.instance, [seat for seat in seat_of if seat >= 0]):
        changes = _CHANGES_TIMES_TASKS // len(seat_of) if proposed else 0
        return search_from(judge, seat_of, proposed, seed=seed, rounds=changes)
    _, best, _ = judge.found()
    packed = dict.fromkeys(task for orders in proposed.values() for task in orders[0])
    others = (task for task in best.order if task not in packed)
    for order in dict.fromkeys((best.order, (*packed, *others))):
        for factors in {best.cap_factors, ()}:
            judge.try_out(replace(best, order=order, seat_of=seat_of, cap_factors=factors))
    return None


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
