"""A plan seat by seat, where seats have nothing to do with each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slidepack.daemon.planner.greedy import Judge
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Recompute, Schedule, Strategy
from slidepack.daemon.planner.score import Score, score_of
from slidepack.daemon.planner.simulate import simulate

__all__ = ["Part", "judged", "part_of", "separable", "show"]


@dataclass(frozen=True, slots=True)
class Part:
    """One seat of a plan: who is there, in which order, how full, and what comes of it."""

    order: tuple[int, ...]
    cap: float
    recompute: Recompute
    max_lanes: int
    schedule: Schedule

    @property
    def end(self) -> float:
        """When its last task ends, in open seconds."""
        return self.schedule.makespan


def separable(instance: Instance, seat_of: Sequence[int]) -> bool:
    """Return whether the seats of a plan have nothing to do with each other."""
    if any(instance.waits_for):
        return False
    devices = [device for seat in set(seat_of) for device in instance.seats[seat].devices]
    return len(devices) == len(set(devices))


def part_of(
    judge: Judge,
    seat: int,
    order: tuple[int, ...],
    cap: float,
    recompute: Recompute,
    max_lanes: int,
) -> Part:
    """Simulate a seat by itself (see `Strategy` for what the arguments mean)."""
    if judge.runs.possible:
        run = judge.runs.run(seat, order, cap, recompute, max_lanes)
        return Part(order, cap, recompute, max_lanes, run)
    instance = judge.instance
    _, best, _ = judge.found()
    seat_of = [-1] * len(instance.tasks)
    for task in order:
        seat_of[task] = seat
    strategy = Strategy(
        order=order,
        cap_factors=(cap,) * len(instance.seats),
        max_lanes=max_lanes,
        recompute=(recompute,) * len(instance.seats),
        seat_of=tuple(seat_of),
        released=best.released,
    )
    run = simulate(instance, strategy, frozenset(order))
    return Part(order, cap, recompute, max_lanes, run)


def _merged(parts: Sequence[Part]) -> Schedule:
    whole = Schedule()
    for part in parts:
        whole.placements += part.schedule.placements
        whole.unfinished += part.schedule.unfinished
        whole.not_begun += part.schedule.not_begun
    return whole


def judged(judge: Judge, parts: Sequence[Part]) -> Score:
    """Return how good a plan of these parts is."""
    return score_of(judge.instance, _merged(parts), judge.weights, judge.until)


def show(judge: Judge, parts: Sequence[Part]) -> None:
    """Simulate the whole plan: what counts is that, not the parts."""
    _, best, _ = judge.found()
    seat_of = [-1] * len(judge.instance.tasks)
    for seat, part in enumerate(parts):
        for task in part.order:
            seat_of[task] = seat
    judge.try_out(
        replace(
            best,
            order=tuple(task for part in parts for task in part.order),
            cap_factors=tuple(part.cap for part in parts),
            recompute=tuple(part.recompute for part in parts),
            seat_of=tuple(seat_of),
            max_lanes=parts[0].max_lanes,
        )
    )
