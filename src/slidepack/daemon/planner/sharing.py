"""Who goes where and in which order, by the packs that are worth playing.

A program shares the tasks of each kind out among places, with the packs that make their steps; on
each seat, tasks are then ordered as those packs need them, one pack after another.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.milp import Milp, Solver
from slidepack.daemon.planner.packing import Layout, Pack

__all__ = ["Shares", "deal", "orders_by_packs", "share_out"]

_DRAWN: Final = 21
"""Sequences of packs that are drawn: which one is best is a matter of what is left at the end."""
_CERTAIN: Final = 1e-6
"""Of a task or a step: less is the rounding of a solver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """What the program says."""

    tasks: dict[tuple[int, int], float]
    """How many of a kind go to a place."""
    packs: tuple[tuple[Pack, float], ...]
    """And how many steps each pack makes, on all seats of its place."""
    seconds: float


def share_out(
    layout: Layout,
    packs: Sequence[Pack],
    solver: Solver,
    *,
    seconds: float,
    slack: Sequence[float],
    whole: bool,
    longest: float,
) -> Shares | None:
    """Share the tasks out.

    Args:
        layout: of the tasks.
        packs: that may be played; each kind alone is among them.
        solver: of the program.
        seconds: it may take.
        slack: by how much packs take longer than they say, by place.
        whole: whether tasks are whole; parts of them are a matter of moments.
        longest: seconds that no task may take alone, where it has a choice.

    Returns:
        None where the solver found nothing in its time.
    """
    milp = Milp()
    makespan = milp.column(cost=1.0)
    tasks: dict[tuple[int, int], int] = {}
    makes: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for number, alike in enumerate(layout.kinds):
        for place in _choices(layout, number, longest):
            column = milp.column(upper=float(len(alike.tasks)), integer=whole)
            tasks[number, place] = column
            makes[number, place] = [(column, -float(alike.steps))]
    busy: list[list[tuple[int, float]]] = [[] for _ in layout.places]
    played = [
        (pack, milp.column())
        for pack in packs
        if all((kind, pack.place) in tasks for kind, _ in pack.counts)
    ]
    for pack, column in played:
        for kind, many in pack.counts:
            makes[kind, pack.place].append((column, float(many)))
        busy[pack.place].append((column, pack.seconds * slack[pack.place]))
    for number, alike in enumerate(layout.kinds):
        here = [(column, 1.0) for (other, _), column in tasks.items() if other == number]
        milp.row(here, lower=float(len(alike.tasks)), upper=float(len(alike.tasks)))
    for terms in makes.values():
        milp.row(terms, lower=0.0)
    for count, places in layout.limits:
        shared = [term for place in places for term in busy[place]]
        milp.row([*shared, (makespan, -float(count))], upper=0.0)
    # A good solution is wanted soon: simplifying takes longer than finding one.
    solved = solver.solve(milp, seconds=seconds, presolve=False)
    if solved.values is None:
        return None
    values = solved.values
    return Shares(
        tasks={key: values[column] for key, column in tasks.items()},
        packs=tuple((pack, values[column]) for pack, column in played if values[column] > _CERTAIN),
        seconds=solved.objective,
    )


def _choices(layout: Layout, kind: int, longest: float) -> list[int]:
    """Return the places where a kind is not too slow by itself, or the one where it is fastest."""
    task = layout.kinds[kind].first
    alone = {
        number: layout.instance.solo_seconds(task, place.first)
        for number, place in enumerate(layout.places)
        if kind in place.kinds
    }
    fast = [place for place, seconds in alone.items() if seconds <= longest]
    return fast or [min(alone, key=lambda place: alone[place])]


def deal(layout: Layout, shares: Shares, rank: Sequence[int]) -> tuple[int, ...]:
    """Return the seat of each task, -1 for those that are not in the layout.

    Args:
        layout: of the tasks.
        shares: what each place gets of each kind; parts go to where most of a task is missing.
        rank: of each task: of one kind, those that go first are dealt first.
    """
    seat_of = [-1] * len(layout.instance.tasks)
    turn = [0] * len(layout.places)
    for number, kind in enumerate(layout.kinds):
        waiting = sorted(kind.tasks, key=lambda task: rank[task], reverse=True)
        share = {place: part for (other, place), part in shares.tasks.items() if other == number}
        for place, many in _rounded(share, len(waiting)).items():
            seats = layout.places[place].seats
            for _ in range(many):
                seat_of[waiting.pop()] = seats[turn[place] % len(seats)]
                turn[place] += 1
    return tuple(seat_of)


def _rounded(share: dict[int, float], count: int) -> dict[int, int]:
    """Round parts so that they add up, those that lose most first."""
    found = {place: int(part + _CERTAIN) for place, part in share.items()}
    ranked = sorted(share, key=lambda place: found[place] - share[place])
    for place in ranked[: count - sum(found.values())]:
        found[place] += 1
    return found


def orders_by_packs(
    layout: Layout, shares: Shares, seat: int, tasks: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return orders in which the tasks of a seat form its packs, one pack after another.

    Args:
        layout: of the tasks.
        shares: that say which packs, and for how many steps.
        seat: to order for.
        tasks: on it; of one kind, the first goes first.
    """
    place = layout.place_of[seat]
    count = len(layout.places[place].seats)
    played = [(pack, steps / count) for pack, steps in shares.packs if pack.place == place]
    found = (
        _order(layout, [played[n] for n in sequence], tasks)
        for sequence in _sequences(layout, played)
    )
    return list(dict.fromkeys(found))


def _sequences(layout: Layout, played: Sequence[tuple[Pack, float]]) -> list[list[int]]:
    """Return which pack comes after which: the tail is what an order decides."""

    def longest(number: int) -> int:
        return max(layout.kinds[kind].steps for kind, _ in played[number][0].counts)

    by_steps = sorted(range(len(played)), key=lambda n: -played[n][1])
    by_longest = sorted(by_steps, key=lambda n: -longest(n))
    chained: list[int] = []
    left = list(by_longest)
    while left:
        before = dict(played[chained[-1]][0].counts) if chained else {}
        following = max(left, key=lambda n: _in_common(played[n][0], before))
        left.remove(following)
        chained.append(following)
    generator = random.Random(len(played))
    drawn = [generator.sample(by_steps, len(by_steps)) for _ in range(_DRAWN)]
    return [by_steps, by_longest, chained, *drawn]


def _in_common(pack: Pack, before: dict[int, int]) -> float:
    """Return the share of a pack's lanes that are in the one before it too."""
    stay = sum(min(many, before.get(kind, 0)) for kind, many in pack.counts)
    return stay / sum(many for _, many in pack.counts)


def _order(
    layout: Layout, played: Sequence[tuple[Pack, float]], tasks: Sequence[int]
) -> tuple[int, ...]:
    """Order tasks by the step, of all packs together, at which each must begin."""
    waiting: dict[int, list[int]] = {}
    for task in reversed(tasks):
        waiting.setdefault(layout.kind_of[task], []).append(task)
    begun = dict.fromkeys(waiting, 0)
    made = dict.fromkeys(waiting, 0.0)
    found: list[tuple[float, int, int]] = []
    at = 0.0
    for pack, steps in played:
        for kind, many in pack.counts:
            if kind not in waiting:
                continue
            each, after = layout.kinds[kind].steps, made[kind] + many * steps
            while waiting[kind]:
                # Lanes beside each other begin together.
                begins = (begun[kind] - many + 1) * each
                if begins >= after - _CERTAIN:
                    break
                when = at + max(0.0, begins - made[kind]) / many
                found.append((when, -each, waiting[kind].pop()))
                begun[kind] += 1
            made[kind] = after
        at += steps
    left = [(at, -layout.kinds[k].steps, task) for k, rest in waiting.items() for task in rest]
    return tuple(task for _, _, task in sorted([*found, *left]))
