"""The planner's one entry: tasks and devices in, a plan with its reasons out. Pure."""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

from slidepack.daemon.planner.answer import LaneSpan, Options, Plan, TaskPlan
from slidepack.daemon.planner.bounds import Bound, lower_bound
from slidepack.daemon.planner.greedy import Judge, endless, portfolio
from slidepack.daemon.planner.improve import improve
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Solver
from slidepack.daemon.planner.moves import try_moves
from slidepack.daemon.planner.reasons import misfit, why_it_waits
from slidepack.daemon.planner.schedule import Placement, Schedule, Strategy
from slidepack.daemon.planner.search import search
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import Device, Task

__all__ = ["make_plan"]

_PAYS: Final = 1.05
"""Times as fast from which on packing is worth a word: predictions are not better than that."""

_SOLVER_RESERVE: Final = 0.75
"""Of the time, for the solver and what comes after it."""
_SOLVER_SHARE: Final = 0.75
"""Of the time that is left, for the solver itself."""
_AFTER_SOLVER: Final = 5
"""Times as many changes are tried from what the solver says: whoever asks it has time to wait."""


def make_plan(
    tasks: Sequence[Task],
    devices: Sequence[Device],
    now: float,
    options: Options,
    *,
    solver: Solver | None = None,
    seconds_left: Callable[[], float] = endless,
) -> Plan:
    """Plan a queue.

    The same arguments give the same plan, unless time cuts it short.

    Args:
        tasks: in the order in which they came.
        devices: that may be used.
        now: in seconds, as all times are.
        options: hours, and how hard to look.
        solver: improves what greedy finds, and never makes it worse; None does without.
        seconds_left: asked now and then; at 0 the best so far is the answer.

    Raises:
        ValueError: two tasks or two devices have the same key.
    """
    instance = Instance(tasks, devices, options.windows, now, options.degrees)
    until = math.inf if options.until is None else instance.hours.open_seconds(options.until)
    in_all = seconds_left()
    asks = solver is not None and options.solver_seconds > 0.0
    reserve = _SOLVER_RESERVE * in_all if asks and in_all < math.inf else 0.0
    judge = Judge(instance, until, lambda: seconds_left() <= reserve)
    portfolio(judge, degrees=options.degrees)
    search(judge, seed=options.seed, rounds=options.search_rounds)
    method: Literal["greedy", "solver"] = "greedy"
    proved: float | None = None
    greedy = judge.found()
    judge.out_of_time = lambda: seconds_left() <= 0.0
    if solver is not None and asks and not judge.enough():
        proved = improve(
            judge, solver, seed=options.seed, seconds_left=_part_of(seconds_left, options)
        )
        search(judge, seed=options.seed, rounds=_AFTER_SOLVER * options.search_rounds)
        method = "solver" if judge.found()[0] < greedy[0] else "greedy"
    try_moves(judge, least_gain_seconds=options.least_gain_seconds)
    return _answer(judge, proved, method)


def _part_of(seconds_left: Callable[[], float], options: Options) -> Callable[[], float]:
    """Return what is left of the solver's part of the time; all of it where time is no matter."""
    begun = seconds_left()
    whole = min(options.solver_seconds, _SOLVER_SHARE * begun)
    return lambda: whole if begun == math.inf else whole - (begun - seconds_left())


def _answer(judge: Judge, proved: float | None, method: Literal["greedy", "solver"]) -> Plan:
    instance = judge.instance
    _, _, schedule = judge.found()
    ended = [placement.task for placement in schedule.placements]
    bound = lower_bound(instance, ended)
    everything = len(ended) == sum(bool(fitting) for fitting in instance.fitting)
    if proved is not None and everything and proved > bound.seconds:
        bound = Bound(seconds=proved, kind="work")
    makespan = schedule.makespan
    # A bound is a bound but for the rounding of long sums.
    lowest = min(bound.seconds, makespan)
    alone = _one_by_one(instance, ended)
    gain = alone / makespan if makespan > 0.0 else 1.0
    packed = _most_lanes(instance, schedule)
    pays = gain >= _PAYS and any(lanes > 1 for lanes in packed.values())
    ends = max((instance.hours.ends(p.end) for p in schedule.placements), default=instance.now)
    return Plan(
        now=instance.now,
        spans=_spans(instance, schedule),
        tasks=_tasks(instance, schedule),
        makespan_seconds=ends - instance.now,
        open_seconds=makespan,
        bound_seconds=lowest,
        bound_kind=bound.kind,
        gap=makespan / lowest - 1.0 if lowest > 0.0 else 0.0,
        one_by_one_seconds=alone,
        packing_gain=gain,
        packing_pays=pays,
        verdict=_verdict(instance, ended, gain, makespan, pays=pays),
        solver_bound_seconds=proved if everything else None,
        method=method,
        max_lanes=packed,
        simulated=judge.simulated,
    )


def _one_by_one(instance: Instance, tasks: Sequence[int]) -> float:
    """Return the open seconds of the tasks with one lane a device, the longest first."""
    order = sorted(tasks, key=lambda task: -instance.best_solo_seconds(task))
    alone = Strategy(order=tuple(order), max_lanes=1)
    return simulate(instance.from_scratch(), alone, frozenset(tasks)).makespan


def _verdict(
    instance: Instance, ended: Sequence[int], gain: float, makespan: float, *, pays: bool
) -> str:
    lanes = [task for task in ended if instance.tasks[task].full is None]
    if len(lanes) < 2:
        return "There is nothing to pack."
    if pays:
        return f"Packing is {gain:.1f} times as fast as one job at a time on each device."
    longest = max(ended, key=instance.best_solo_seconds)
    if instance.best_solo_seconds(longest) * _PAYS >= makespan:
        why = f"{instance.tasks[longest].key} takes as long alone as the whole plan"
    else:
        why = "a job's steps fill a device by themselves"
    return f"Packing does not pay here ({gain:.2f} times as fast): {why}."


def _spans(instance: Instance, schedule: Schedule) -> tuple[LaneSpan, ...]:
    found = []
    cut = {placement.task for placement in schedule.unfinished}
    for placement in (*schedule.placements, *schedule.unfinished):
        pieces = instance.hours.pieces(placement.begin, placement.end)
        for number, (begin, end) in enumerate(pieces, 1):
            found.append(
                LaneSpan(
                    task=instance.tasks[placement.task].key,
                    devices=instance.seats[placement.seat].keys,
                    begin=begin,
                    end=end,
                    ends=number == len(pieces) and placement.task not in cut,
                )
            )
    return tuple(sorted(found, key=lambda span: (span.begin, span.devices, span.task)))


def _tasks(instance: Instance, schedule: Schedule) -> tuple[TaskPlan, ...]:
    placed: dict[int, Placement] = {p.task: p for p in schedule.placements}
    cut = {p.task: p for p in schedule.unfinished}
    moved = set(schedule.moved)
    return tuple(
        _task(instance, schedule, task, placed.get(task), cut.get(task), moves=task in moved)
        for task in range(len(instance.tasks))
    )


def _task(
    instance: Instance,
    schedule: Schedule,
    task: int,
    done: Placement | None,
    cut: Placement | None,
    *,
    moves: bool,
) -> TaskPlan:
    asked, place = instance.tasks[task], done or cut
    fits = place is not None or bool(instance.fitting[task])
    why, remedy = ("", "") if fits else misfit(instance, task)
    in_time = None
    if asked.deadline is not None:
        in_time = done is not None and done.end <= instance.deadlines[task]
    begin = None if place is None else instance.hours.begins(place.begin)
    return TaskPlan(
        task=asked.key,
        begin=None if begin == math.inf else begin,
        end=None if done is None else instance.hours.ends(done.end),
        devices=() if place is None else instance.seats[place.seat].keys,
        in_time=in_time,
        moves=moves,
        fits=fits,
        waits=why or _waiting(instance, schedule, task, begins_now=begin == instance.now),
        remedy=remedy,
    )


def _waiting(instance: Instance, schedule: Schedule, task: int, *, begins_now: bool) -> str:
    return "" if begins_now else why_it_waits(instance, schedule, task)


def _most_lanes(instance: Instance, schedule: Schedule) -> dict[str, int]:
    """Return the most lanes at once by device; where one ends, the next may begin."""
    changes: dict[str, list[tuple[float, int]]] = {}
    for placement in (*schedule.placements, *schedule.unfinished):
        for key in instance.seats[placement.seat].keys:
            changes.setdefault(key, []).extend([(placement.begin, 1), (placement.end, -1)])
    found = dict.fromkeys((device.key for device in instance.devices), 0)
    for key, events in changes.items():
        lanes = 0
        for _, change in sorted(events):
            lanes += change
            found[key] = max(found[key], lanes)
    return found
