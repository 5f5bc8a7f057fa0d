"""Whether what runs should go elsewhere: only where the gain pays for the move.

The move itself is in the simulation: a task that is taken away waits for its checkpoint and for
what it has to do again, and its new place may have to start a worker.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.greedy import Judge
from slidepack.daemon.planner.schedule import Strategy
from slidepack.daemon.planner.score import Score

__all__ = ["try_moves"]

_LEAST_SHARE: Final = 0.02
"""Of the plan's time that a move must gain: predictions are not better than that."""
_MOST_SINGLE: Final = 16


def try_moves(judge: Judge, *, least_gain_seconds: float) -> None:
    """Try to take running tasks from where they are; keep the best plan that pays.

    Args:
        judge: with the best plan in which everything stays.
        least_gain_seconds: that a plan with moves must be better by.
    """
    kept = judge.found()
    best = kept
    for released in _releases(judge):
        if judge.out_of_time():
            break
        for strategy in _variants(judge, kept[1]):
            judge.best = None
            judge.try_out(replace(strategy, released=released))
            moved = judge.found()
            gain = max(least_gain_seconds, _LEAST_SHARE * kept[0].seconds)
            if moved[0] < best[0] and _pays(kept[0], moved[0], gain):
                best = moved
    judge.best = best


def _pays(kept: Score, moved: Score, gain_seconds: float) -> bool:
    """Return whether a plan with moves keeps more of what was asked for, or is clearly faster."""
    asked = (kept.broken_promises, kept.missed_deadlines, kept.missing_value)
    now = (moved.broken_promises, moved.missed_deadlines, moved.missing_value)
    return now < asked or (now == asked and kept.seconds - moved.seconds >= gain_seconds)


def _variants(judge: Judge, kept: Strategy) -> Iterable[Strategy]:
    """Yield strategies for what is freed; seats were chosen for tasks that stayed."""
    free = replace(kept, seat_of=None)
    yield free
    if kept.cap_factors:
        yield replace(free, cap_factors=())


def _releases(judge: Judge) -> list[frozenset[int]]:
    """Return what may be taken away together: all, a seat's, or one of few."""
    instance = judge.instance
    running = {task: seat for task, seat in enumerate(instance.running_seat) if seat is not None}
    found = [frozenset(running)] if running else []
    for wanted in sorted(set(running.values())):
        found.append(frozenset(task for task, seat in running.items() if seat == wanted))
    if len(running) <= _MOST_SINGLE:
        found += [frozenset({task}) for task in sorted(running)]
    return list(dict.fromkeys(found))
