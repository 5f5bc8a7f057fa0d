"""The best order and token cap of each seat by itself."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from slidepack.daemon.planner.greedy import Judge, orders
from slidepack.daemon.planner.parts import Part, judged, part_of, show
from slidepack.daemon.planner.schedule import Recompute

__all__ = ["NO_CAP", "tuned"]

NO_CAP: Final = 16.0
"""As a factor: a pack with so many tokens is bound by them anyway."""
_CAPS: Final = (1.0, 2.0, 4.0, NO_CAP)
_WIDE_CAP: Final = 4.0
"""For packs that a program made: their tokens are chosen already."""
_PROMISING: Final = 3
_RECOMPUTE: Final[tuple[Recompute, ...]] = ("never", "for tokens")
_NAMES: Final = ("most steps", "most memory", "longest", "due")


def tuned(
    judge: Judge,
    seat_of: Sequence[int],
    proposed: Mapping[int, Sequence[tuple[int, ...]]] | None = None,
) -> list[Part]:
    """Try orders and caps for each seat, and let the judge see the plan of the best.

    Args:
        judge: that has a plan.
        seat_of: of each task.
        proposed: orders for a seat, to be tried with packs of any size; None tries the usual ones.
    """
    parts: list[Part] = []
    ranked = orders(judge.instance)
    _, best, _ = judge.found()
    usual = [ranked[name] for name in _NAMES if name in ranked]
    lanes = best.max_lanes if proposed is None else 0
    for seat in range(len(judge.instance.seats)):
        here = {task for task, chosen in enumerate(seat_of) if chosen == seat}
        cap = best.cap_factors[seat] if best.cap_factors else NO_CAP
        now = best.recompute[seat] if best.recompute else "freely"
        tried = usual
        if proposed is not None:
            tried = [*_promising(judge, seat, proposed.get(seat, ())), *usual[:1]]
        found = part_of(judge, seat, tuple(k for k in best.order if k in here), cap, now, lanes)
        choices = (_RECOMPUTE if best.recompute else ("freely",)) if here else ()
        for order, choice, cap in itertools.product(tried, choices, _CAPS):
            if judge.out_of_time():
                break
            part = part_of(judge, seat, tuple(k for k in order if k in here), cap, choice, lanes)
            found = min(found, part, key=lambda p: judged(judge, [p]))
        parts.append(found)
    show(judge, parts)
    return parts


def _promising(
    judge: Judge, seat: int, proposed: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return the best few of the orders, each tried with the packs that they were made for."""
    ends = []
    for number, order in enumerate(proposed):
        if judge.out_of_time():
            break
        ends.append((part_of(judge, seat, order, _WIDE_CAP, "never", 0).end, number))
    return [proposed[number] for _, number in sorted(ends)[:_PROMISING]]
