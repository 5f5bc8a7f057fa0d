"""Local search from the best plan so far: small changes, simulated, kept where they help.

Where no task waits for another and each seat has devices of its own, a change concerns two seats
at most, and only those are simulated again.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.greedy import Judge
from slidepack.daemon.planner.parts import Part, judged, part_of, separable, show
from slidepack.daemon.planner.tune import NO_CAP, tuned

__all__ = ["search", "search_from"]

_MEMORY: Final = 40
"""Changes for which the search remembers how good its plan was."""


def search(judge: Judge, *, seed: int, rounds: int) -> None:
    """Improve the best plan of the judge by at most so many changes.

    It is the same for the same seed and rounds; time can only cut it short.
    """
    if judge.enough() or not judge.instance.tasks or not judge.instance.seats:
        return
    generator = random.Random(seed)
    seat_of = _seat_of(judge)
    if seat_of is not None and separable(judge.instance, seat_of):
        _search_seats(judge, generator, rounds, tuned(judge, seat_of))
    else:
        _search_whole(judge, generator, rounds)


def search_from(
    judge: Judge,
    seat_of: Sequence[int],
    proposed: Mapping[int, Sequence[tuple[int, ...]]],
    *,
    seed: int,
    rounds: int,
) -> list[float]:
    """Improve a plan that is not the judge's best by at most so many changes.

    Args:
        judge: that has a plan.
        seat_of: of each task.
        proposed: orders of the tasks of a seat, to be tried with packs of any size.
        seed: of the changes.
        rounds: changes that are tried.

    Returns:
        When each seat ended before any change, in open seconds.
    """
    parts = tuned(judge, seat_of, proposed)
    ends = [part.end for part in parts]
    _search_seats(judge, random.Random(seed), rounds, parts)
    return ends


def _seat_of(judge: Judge) -> list[int] | None:
    """Return where the best plan puts each task, or None where it leaves some out."""
    _, _, schedule = judge.found()
    instance = judge.instance
    placed = {p.task: p.seat for p in (*schedule.placements, *schedule.unfinished)}
    fitting = all(seat in instance.fitting[task] for task, seat in placed.items())
    if len(placed) < len(instance.tasks) or not fitting:
        return None
    return [placed[task] for task in range(len(instance.tasks))]


def _search_seats(judge: Judge, generator: random.Random, rounds: int, parts: list[Part]) -> None:
    """Change parts at random, and let the judge see the best plan that comes of it.

    A change counts that is no worse than what was there some changes ago: so the search leaves
    plans that no single change makes better.
    """
    score = best_score = begun_with = judged(judge, parts)
    best = parts
    before = [score] * _MEMORY
    for number in range(rounds):
        if judge.out_of_time() or judge.is_good(best_score):
            break
        changed = _changed(judge, generator, parts)
        if changed is None:
            continue
        candidate = [changed.get(seat, part) for seat, part in enumerate(parts)]
        allowed = max(score, before[number % _MEMORY])
        end = max(part.end for part in candidate)
        if not judge.runs.possible or end <= allowed.seconds:
            tried = judged(judge, candidate)
            if tried <= allowed:
                parts, score = candidate, tried
        before[number % _MEMORY] = score
        if score < best_score:
            best, best_score = parts, score
    if best_score < begun_with:
        show(judge, best)


def _changed(
    judge: Judge, generator: random.Random, parts: Sequence[Part]
) -> dict[int, Part] | None:
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


def _varied(judge: Judge, generator: random.Random, seat: int, part: Part) -> Part:
    """Return a seat with another cap, or with one task elsewhere in its order."""
    if generator.random() < 0.5:
        cap = part.cap * generator.uniform(0.7, 1.4)
        return part_of(judge, seat, part.order, cap, part.recompute, part.max_lanes)
    return _with_order(judge, seat, part, _reordered(generator, part.order))


def _with_order(judge: Judge, seat: int, part: Part, order: tuple[int, ...]) -> Part:
    return part_of(judge, seat, order, part.cap, part.recompute, part.max_lanes)


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
        caps = best.cap_factors or (NO_CAP,) * seats
        if generator.random() < 0.3:
            factor, chosen = generator.uniform(0.7, 1.4), generator.randrange(seats)
            caps = tuple(cap * factor if seat == chosen else cap for seat, cap in enumerate(caps))
            judge.try_out(replace(best, cap_factors=caps))
        else:
            judge.try_out(replace(best, order=_reordered(generator, best.order)))
