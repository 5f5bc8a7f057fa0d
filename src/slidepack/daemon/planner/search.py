"""Local search from the best plan so far: small changes, simulated, kept where they help.

Where no task waits for another and each seat has devices of its own, a change concerns two seats
at most, and only those are simulated again.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from slidepack.daemon.planner.greedy import Judge, orders
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Recompute, Schedule, Strategy
from slidepack.daemon.planner.score import Score, score_of
from slidepack.daemon.planner.simulate import simulate

__all__ = ["search", "separable", "tune_seats"]

_NO_CAP: Final = 16.0
"""As a factor: a pack with so many tokens is bound by them anyway."""
_CAPS: Final = (1.0, 2.0, 4.0, _NO_CAP)
_RECOMPUTE: Final[tuple[Recompute, ...]] = ("never", "for tokens")
_NAMES: Final = ("most steps", "most memory", "longest", "due")


@dataclass(frozen=True, slots=True)
class _Part:
    """One seat of a plan: who is there, in which order, how full, and what comes of it."""

    order: tuple[int, ...]
    cap: float
    recompute: Recompute
    schedule: Schedule

    @property
    def end(self) -> float:
        return self.schedule.makespan


def separable(instance: Instance, seat_of: Sequence[int]) -> bool:
    """Return whether the seats of a plan have nothing to do with each other."""
    if any(instance.waits_for):
        return False
    devices = [device for seat in set(seat_of) for device in instance.seats[seat].devices]
    return len(devices) == len(set(devices))


def search(judge: Judge, *, seed: int, rounds: int) -> None:
    """Improve the best plan of the judge by at most so many changes.

    It is the same for the same seed and rounds; time can only cut it short.
    """
    if judge.enough() or not judge.instance.tasks or not judge.instance.seats:
        return
    generator = random.Random(seed)
    seat_of = _seat_of(judge)
    if seat_of is not None and separable(judge.instance, seat_of):
        _search_seats(judge, generator, rounds, _tuned(judge, seat_of))
    else:
        _search_whole(judge, generator, rounds)


def tune_seats(judge: Judge, seat_of: Sequence[int]) -> list[float]:
    """Find the best order and token cap for each seat by itself, and let the judge see the plan.

    Returns:
        When each seat ends, in open seconds.
    """
    return [part.end for part in _tuned(judge, seat_of)]


def _tuned(judge: Judge, seat_of: Sequence[int]) -> list[_Part]:
    parts: list[_Part] = []
    ranked = orders(judge.instance)
    _, best, _ = judge.found()
    tried = [ranked[name] for name in _NAMES if name in ranked]
    for seat in range(len(judge.instance.seats)):
        here = {task for task, chosen in enumerate(seat_of) if chosen == seat}
        cap = best.cap_factors[seat] if best.cap_factors else _NO_CAP
        now = best.recompute[seat] if best.recompute else "freely"
        found = _part(judge, seat, tuple(k for k in best.order if k in here), cap, now)
        choices = (_RECOMPUTE if best.recompute else ("freely",)) if here else ()
        for order, cap, choice in itertools.product(tried, _CAPS, choices):
            if judge.out_of_time():
                break
            part = _part(judge, seat, tuple(k for k in order if k in here), cap, choice)
            found = min(found, part, key=lambda p: _judged(judge, [p]))
        parts.append(found)
    _show(judge, parts)
    return parts


def _seat_of(judge: Judge) -> list[int] | None:
    """Return where the best plan puts each task, or None where it leaves some out."""
    _, _, schedule = judge.found()
    instance = judge.instance
    placed = {p.task: p.seat for p in (*schedule.placements, *schedule.unfinished)}
    fitting = all(seat in instance.fitting[task] for task, seat in placed.items())
    if len(placed) < len(instance.tasks) or not fitting:
        return None
    return [placed[task] for task in range(len(instance.tasks))]


def _part(
    judge: Judge, seat: int, order: tuple[int, ...], cap: float, recompute: Recompute
) -> _Part:
    instance = judge.instance
    _, best, _ = judge.found()
    seat_of = [-1] * len(instance.tasks)
    for task in order:
        seat_of[task] = seat
    strategy = Strategy(
        order=order,
        cap_factors=(cap,) * len(instance.seats),
        max_lanes=best.max_lanes,
        recompute=(recompute,) * len(instance.seats),
        seat_of=tuple(seat_of),
        released=best.released,
    )
    return _Part(order, cap, recompute, simulate(instance, strategy, frozenset(order)))


def _merged(parts: Sequence[_Part]) -> Schedule:
    whole = Schedule()
    for part in parts:
        whole.placements += part.schedule.placements
        whole.unfinished += part.schedule.unfinished
        whole.not_begun += part.schedule.not_begun
    return whole


def _judged(judge: Judge, parts: Sequence[_Part]) -> Score:
    return score_of(judge.instance, _merged(parts), judge.weights, judge.until)


def _show(judge: Judge, parts: Sequence[_Part]) -> None:
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
        )
    )


def _search_seats(judge: Judge, generator: random.Random, rounds: int, parts: list[_Part]) -> None:
    score = _judged(judge, parts)
    begun_with = score
    for _ in range(rounds):
        if judge.out_of_time():
            break
        changed = _changed(judge, generator, parts)
        if changed is None:
            continue
        candidate = [changed.get(seat, part) for seat, part in enumerate(parts)]
        tried = _judged(judge, candidate)
        if tried < score:
            parts, score = candidate, tried
    if score < begun_with:
        _show(judge, parts)


def _changed(
    judge: Judge, generator: random.Random, parts: Sequence[_Part]
) -> dict[int, _Part] | None:
    """Return the seats that a random change makes anew: it begins where the plan ends."""
    last = max(range(len(parts)), key=lambda seat: parts[seat].end)
    part = parts[last]
    if not part.order:
        return None
    others = [seat for seat, other in enumerate(parts) if seat != last and _is_used(judge, seat)]
    choice = generator.random()
    if not others or choice < 0.2:
        return {last: _varied(judge, generator, last, part)}
    other = generator.choice(others)
    there = parts[other]
    given = generator.choice(part.order)
    if not _may_move(judge, given, other):
        return None
    taken: tuple[int, ...] = ()
    if choice > 0.55 and there.order:
        taken = (generator.choice(there.order),)
        if not _may_move(judge, taken[0], last):
            return None
    kept = _exchanged(part.order, given, taken)
    got = _exchanged(there.order, taken[0] if taken else None, (given,))
    return {
        last: _with_order(judge, last, part, kept),
        other: _with_order(judge, other, there, got),
    }


def _varied(judge: Judge, generator: random.Random, seat: int, part: _Part) -> _Part:
    """Return a seat with another cap, or with one task elsewhere in its order."""
    if generator.random() < 0.5:
        cap = part.cap * generator.uniform(0.7, 1.4)
        return _part(judge, seat, part.order, cap, part.recompute)
    return _with_order(judge, seat, part, _reordered(generator, part.order))


def _with_order(judge: Judge, seat: int, part: _Part, order: tuple[int, ...]) -> _Part:
    return _part(judge, seat, order, part.cap, part.recompute)


def _may_move(judge: Judge, task: int, seat: int) -> bool:
    """Return whether a task may go to a seat; what runs and stays is not for the search."""
    _, best, _ = judge.found()
    stays = judge.instance.running_seat[task] is not None and task not in best.released
    return seat in judge.instance.fitting[task] and not stays


def _is_used(judge: Judge, seat: int) -> bool:
    """Return whether a seat may be given tasks: groups overlap with their members."""
    return judge.instance.seats[seat].degree == 1


def _exchanged(order: tuple[int, ...], gone: int | None, come: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order without one task and with others in its place."""
    if gone is None:
        return (*come, *order)
    at = order.index(gone)
    return order[:at] + come + order[at + 1 :]


def _reordered(generator: random.Random, order: tuple[int, ...]) -> tuple[int, ...]:
    changed = list(order)
    task = changed.pop(generator.randrange(len(changed)))
    changed.insert(generator.randrange(len(changed) + 1), task)
    return tuple(changed)


def _search_whole(judge: Judge, generator: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        if judge.enough():
            return
        _, best, _ = judge.found()
        seats = len(judge.instance.seats)
        caps = best.cap_factors or (_NO_CAP,) * seats
        if generator.random() < 0.3:
            factor, chosen = generator.uniform(0.7, 1.4), generator.randrange(seats)
            caps = tuple(cap * factor if seat == chosen else cap for seat, cap in enumerate(caps))
            judge.try_out(replace(best, cap_factors=caps))
        else:
            judge.try_out(replace(best, order=_reordered(generator, best.order)))
