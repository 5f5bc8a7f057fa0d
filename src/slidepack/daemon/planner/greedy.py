"""The greedy portfolio: several orders, token caps and sizes of packs, each simulated."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.bounds import lower_bound
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Recompute, Schedule, Strategy
from slidepack.daemon.planner.score import Score, priority_weights, score_of
from slidepack.daemon.planner.seat_run import SeatRuns
from slidepack.daemon.planner.simulate import simulate

__all__ = ["Found", "Judge", "endless", "orders", "portfolio"]

_FEW_TASKS: Final = 24
"""Up to here lanes may also make a pack recompute for nothing: there is little to choose from."""
_CAPS: Final = (1.0, 2.0, 4.0, math.inf)
_FINER: Final = (0.6, 0.75, 1.25, 1.5, 2.0)
_RECOMPUTE: Final[tuple[Recompute, ...]] = ("never", "for tokens", "freely")
_PACKS: Final = (64, 16, 8, 4, 2, 1)
"""Most lanes; 1 packs nothing."""

_GOOD_ENOUGH: Final = 1.002
"""Times the bound: predictions are far from telling such plans apart."""

Found = tuple[Score, Strategy, Schedule]


def endless() -> float:
    """Return the seconds that are left to a plan without a limit."""
    return math.inf


class Judge:
    """Simulates strategies, and keeps the best."""

    def __init__(
        self,
        instance: Instance,
        until: float,
        out_of_time: Callable[[], bool],
    ) -> None:
        """Know nothing yet.

        Args:
            instance: the problem.
            until: open seconds by which value counts.
            out_of_time: whether to look no further.
        """
        self.instance, self.until, self.out_of_time = instance, until, out_of_time
        self.weights = priority_weights(instance, range(len(instance.tasks)))
        self.runs = SeatRuns(instance)
        self.best: Found | None = None
        self.simulated = 0
        self._goal = _goal(instance) if len(self.weights) == 1 else 0.0

    def try_out(self, strategy: Strategy) -> Score:
        """Simulate a strategy; it is the best one from now on if none was better."""
        schedule = simulate(self.instance, strategy)
        self.simulated += 1
        score = score_of(self.instance, schedule, self.weights, self.until)
        if self.best is None or score < self.best[0]:
            self.best = score, strategy, schedule
        return score

    def enough(self) -> bool:
        """Return whether to look no further: time is up, or the plan is as good as any can be."""
        if self.best is None:
            return self.out_of_time()
        score, _, _ = self.best
        return self.out_of_time() or self.is_good(score)

    def is_good(self, score: Score) -> bool:
        """Return whether no plan is much better than one with this score."""
        ends = self.until == math.inf or score.missing_value == 0.0
        kept = score.missed_deadlines == 0 and ends
        return kept and score.seconds <= _GOOD_ENOUGH * self._goal

    def learn(self, bound: float) -> None:
        """Take note of open seconds that no plan for all tasks is below."""
        if len(self.weights) == 1:
            self._goal = max(self._goal, bound)

    def found(self) -> Found:
        """Return the best of all that was tried."""
        assert self.best is not None
        return self.best


def portfolio(judge: Judge, *, degrees: Sequence[int] = (1,)) -> None:
    """Try the portfolio, then finer caps and sizes of packs around the best of it."""
    instance = judge.instance
    ranked = list(orders(instance).values())
    for degree in sorted(set(degrees)):
        for strategy in _combinations(instance, ranked, degree):
            judge.try_out(strategy)
            if judge.enough():
                return
    _refine(judge)


def orders(instance: Instance) -> dict[str, tuple[int, ...]]:
    """Return the orders that are tried, by name."""
    tasks = range(len(instance.tasks))
    tails = _tails(instance)
    solo = [instance.best_solo_seconds(task) for task in tasks]
    steps = [task.steps for task in instance.tasks]
    found = {
        "first come": tuple(tasks),
        "most steps": tuple(sorted(tasks, key=lambda k: (-steps[k], -solo[k]))),
        "most memory": tuple(
            sorted(tasks, key=lambda k: (-steps[k] * instance.tasks[k].params, -solo[k]))
        ),
        "longest": tuple(sorted(tasks, key=lambda k: -solo[k])),
        "longest behind": tuple(sorted(tasks, key=lambda k: (-tails[k], -steps[k]))),
        "shortest": tuple(sorted(tasks, key=lambda k: (solo[k], steps[k]))),
        "worth": tuple(sorted(tasks, key=lambda k: solo[k] / max(1e-9, instance.tasks[k].value))),
        "due": tuple(sorted(tasks, key=lambda k: (instance.deadlines[k], -steps[k]))),
    }
    unique = dict.fromkeys(found.values())
    names = {order: name for name, order in reversed(found.items())}
    return {names[order]: order for order in unique}


def _goal(instance: Instance) -> float:
    """Return what no plan for all tasks is below; 0 where some never end anyway."""
    tasks = range(len(instance.tasks))
    if any(not instance.fitting[k] or instance.missing[k] or k in instance.circular for k in tasks):
        return 0.0
    return lower_bound(instance, tasks).seconds


def _combinations(
    instance: Instance, ranked: Sequence[tuple[int, ...]], degree: int
) -> Iterator[Strategy]:
    seats = len(instance.seats)
    bases = [base for seat in instance.seats for base in seat.bases.values()]
    may_keep = any(base.keep is not None and base.recompute_slowdown > 1.0 for base in bases)
    choices = _RECOMPUTE if may_keep else _RECOMPUTE[-1:]
    if may_keep and len(instance.tasks) > _FEW_TASKS:
        choices = _RECOMPUTE[:-1]
    # Caps first: where time is short, they make more of a difference than orders.
    for order, recompute, cap in itertools.product(ranked, choices, _CAPS):
        yield Strategy(
            order=order,
            cap_factors=() if cap == math.inf else (cap,) * seats,
            recompute=(recompute,) * seats,
            degree=degree,
        )


def _refine(judge: Judge) -> None:
    """Try finer caps, then smaller packs, around the best so far."""
    _, best, _ = judge.found()
    seats = len(judge.instance.seats)
    around = best.cap_factors[0] if best.cap_factors else 8.0
    for factor in _FINER:
        if judge.enough():
            return
        judge.try_out(replace(best, cap_factors=(around * factor,) * seats))
    _, best, _ = judge.found()
    for lanes in _PACKS:
        if judge.enough():
            return
        judge.try_out(replace(best, max_lanes=lanes))


def _tails(instance: Instance) -> list[float]:
    """Return each task's time alone, with that of the longest chain of those that wait for it."""
    tails = [instance.best_solo_seconds(task) for task in range(len(instance.tasks))]
    ahead = {task: len(others) for task, others in enumerate(instance.waits_for)}
    behind: dict[int, list[int]] = {}
    for task, others in enumerate(instance.waits_for):
        for other in others:
            behind.setdefault(other, []).append(task)
    ready = [task for task, count in ahead.items() if count == 0]
    ranked: list[int] = []
    while ready:
        task = ready.pop()
        ranked.append(task)
        for other in behind.get(task, ()):
            ahead[other] -= 1
            if ahead[other] == 0:
                ready.append(other)
    for task in reversed(ranked):
        tails[task] += max((tails[other] for other in behind.get(task, ())), default=0.0)
    return tails
