"""Lower bounds of the time a queue takes, whatever the plan.

Two kinds. A chain: no task ends before its own steps alone, after those that it waits for. And
work: with a price for a second of each device that sums to one, the dearest device is busy at
least as long as all tasks cost where each is cheapest; prices are moved so that this gets large.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from slidepack.daemon.planner.instance import Instance, kept_tokens
from slidepack.daemon.planner.tasks import BaseOnDevice

__all__ = [
    "FLOOR_SHARES",
    "Bound",
    "chain_bound",
    "lower_bound",
    "memory_share",
    "parts_of_step",
    "unit_seconds",
]

_PRICE_ROUNDS: Final = 60
_FIRST_STEP: Final = 0.5
FLOOR_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the floor in the mean of the two lines of a step's cost; any gives a bound."""

_Shared = Literal["lanes", "memory", "longest"]
"""Who shares what a pack's step costs beside its tokens: as many lanes as are allowed, as many as
the memory holds, or nobody, and then it is counted for the longest task alone."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A lower bound, and what it comes from."""

    seconds: float
    """Open seconds from now."""
    kind: Literal["work", "chain"]


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks whose steps cost the same everywhere."""

    steps: int
    """Of all of them."""
    unit: dict[int, float]
    """Seconds of a step by seat."""
    once: dict[int, float]
    """Seconds in which they let others wait, by seat."""


def lower_bound(instance: Instance, tasks: Sequence[int]) -> Bound:
    """Return the best bound for these tasks, all of which fit somewhere."""
    if not tasks:
        return Bound(seconds=0.0, kind="work")
    chain = chain_bound(instance, tasks)
    work = max(
        _work_bound(instance, tasks, shared, floor_share)
        for shared in _shares(instance, tasks)
        for floor_share in FLOOR_SHARES
    )
    if work > chain:
        return Bound(seconds=work, kind="work")
    return Bound(seconds=chain, kind="chain")


def chain_bound(instance: Instance, tasks: Sequence[int]) -> float:
    """Return when the last task could end if each had a device for itself."""
    chosen, ends = set(tasks), dict[int, float]()

    def end(task: int) -> float:
        stack = [task]
        while stack:
            top = stack[-1]
            before = [other for other in instance.waits_for[top] if other in chosen]
            left = [other for other in before if other not in ends]
            if left:
                stack += left
                continue
            stack.pop()
            ready = max((ends[other] for other in before), default=0.0)
            ready = max(ready, instance.released[top])
            ends[top] = min(
                max(ready, instance.free_from[seat])
                + instance.solo_seconds(top, seat)
                + _once(instance, top, seat)
                for seat in _seats(instance, top)
            )
        return ends[task]

    return max(end(task) for task in tasks)


def _seats(instance: Instance, task: int) -> tuple[int, ...]:
    """Return where a task may run; where it runs now, it fits."""
    running = instance.running_seat[task]
    fitting = instance.fitting[task]
    return fitting if running is None or running in fitting else (*fitting, running)


def _shares(instance: Instance, tasks: Sequence[int]) -> tuple[_Shared, ...]:
    """Return what is true of every pack; what runs already may be more than what is counted."""
    lanes = [0.0] * len(instance.seats)
    memory = [0.0] * len(instance.seats)
    for task in tasks:
        seat = instance.running_seat[task]
        if seat is not None and instance.tasks[task].full is None:
            lanes[seat] += 1.0 / (instance.seats[seat].max_lanes or len(instance.tasks))
            memory[seat] += memory_share(instance, task, seat)
    return (
        "longest",
        *(("lanes",) if max(lanes) <= 1.0 else ()),
        *(("memory",) if max(memory) <= 1.0 else ()),
    )


def _work_bound(
    instance: Instance, tasks: Sequence[int], shared: _Shared, floor_share: float
) -> float:
    groups = _groups(instance, tasks, shared, floor_share)
    members = [seat.devices for seat in instance.seats]
    count = len(instance.devices)
    prices = [1.0 / count] * count
    extra = _longest_extra(instance, tasks, floor_share) if shared == "longest" else None
    best = 0.0
    for round_number in range(_PRICE_ROUNDS):
        of_seat = [sum(prices[device] for device in seat) for seat in members]
        total, loads = 0.0, [0.0] * count
        for group in groups:
            spent_on = {s: group.steps * unit + group.once[s] for s, unit in group.unit.items()}
            price, seat = min((of_seat[s] * spent, s) for s, spent in spent_on.items())
            spent = spent_on[seat]
            total += price
            for device in members[seat]:
                loads[device] += spent
        if extra is not None:
            total += extra(of_seat)
        best = max(best, total)
        mean = sum(loads) / count
        if count == 1 or mean == 0.0:
            break
        step = _FIRST_STEP / (1.0 + 0.2 * round_number)
        raised = [
            price * math.exp(step * max(-1.0, min(1.0, load / mean - 1.0)))
            for price, load in zip(prices, loads, strict=True)
        ]
        prices = [price / sum(raised) for price in raised]
    return best


def _groups(
    instance: Instance, tasks: Sequence[int], shared: _Shared, floor_share: float
) -> list[_Group]:
    found: dict[tuple[object, ...], tuple[int, int, int]] = {}
    for task in tasks:
        asked = instance.tasks[task]
        seats = _seats(instance, task)
        likeness: tuple[object, ...] = (
            (task,)
            if asked.full
            else (
                asked.model,
                asked.tokens,
                asked.step_tokens,
                asked.params,
                asked.row_tokens,
                seats,
            )
        )
        first, steps, many = found.get(likeness, (task, 0, 0))
        # One that runs already has joined.
        joins = instance.running_seat[task] is None
        found[likeness] = first, steps + asked.steps, many + joins
    return [
        _Group(
            steps=steps,
            unit={
                seat: unit_seconds(instance, task, seat, shared, floor_share)
                for seat in _seats(instance, task)
            },
            once={
                seat: many * instance.once_seconds(task, seat) for seat in _seats(instance, task)
            },
        )
        for task, steps, many in found.values()
    ]


def _once(instance: Instance, task: int, seat: int) -> float:
    joins = instance.running_seat[task] is None
    return instance.once_seconds(task, seat) if joins else 0.0


def unit_seconds(
    instance: Instance, task: int, seat: int, shared: _Shared, floor_share: float
) -> float:
    """Return the least seconds that a step of a task takes of a seat, in the best of packs."""
    asked = instance.tasks[task]
    if asked.full is not None:
        return instance.step_seconds(task, seat)
    base = instance.base(task, seat)

    def seconds(part: float, slowdown: float) -> float:
        of_step, of_tokens = _mixed(base, floor_share, slowdown)
        return of_step * part + of_tokens * asked.tokens + base.cost.lane_seconds

    match shared:
        case "lanes":
            part = 1.0 / (instance.seats[seat].max_lanes or len(instance.tasks))
        case "longest":
            part = 0.0
        case "memory":
            again = seconds(memory_share(instance, task, seat), base.recompute_slowdown)
            if base.keep is None:
                return again
            # A step is of a pack that keeps its activations, in less room, or of one that does not.
            return min(again, seconds(memory_share(instance, task, seat, keeps=True), 1.0))
    return seconds(part, 1.0 if base.keep is not None else base.recompute_slowdown)


def _mixed(base: BaseOnDevice, floor_share: float, slowdown: float) -> tuple[float, float]:
    """Return seconds of a pack's step, and of each of its tokens, between the two lines of a cost:
    a step takes no less than either, and so no less than any mean of them."""
    cost = base.cost
    slope = (1.0 - floor_share) * cost.token_seconds * slowdown
    return floor_share * cost.floor_seconds + slope * cost.fixed_tokens, slope


def parts_of_step(base: BaseOnDevice, *, at_floor: bool) -> tuple[float, float]:
    """Return seconds of a pack's step, and of each of its tokens: a step takes no less than either
    of the two lines that its cost is the higher one of."""
    if at_floor:
        return base.cost.floor_seconds, 0.0
    alpha = base.cost.token_seconds * (base.recompute_slowdown if base.keep is None else 1.0)
    return alpha * base.cost.fixed_tokens, alpha


def memory_share(instance: Instance, task: int, seat: int, *, keeps: bool = False) -> float:
    """Return how much of a pack's room for adapters a task takes, beside a row of its own."""
    base = instance.base(task, seat)
    asked = instance.tasks[task]
    rows = base.recompute.of(asked.row_tokens)
    if keeps and base.keep is not None:
        rows = base.keep.of(kept_tokens(base, asked.row_tokens, asked.step_tokens))
    room = instance.seats[seat].memory_bytes - base.fixed_bytes - rows
    share = asked.params * base.bytes_per_param / room if room > 0 else 1.0
    if base.most_params:
        share = max(share, asked.params / base.most_params)
    return min(1.0, share)


def _longest_extra(
    instance: Instance, tasks: Sequence[int], floor_share: float
) -> Callable[[Sequence[float]], float] | None:
    """Return what the steps of the longest task cost beside tokens, given the prices of seats."""
    lanes = [task for task in tasks if instance.tasks[task].full is None]
    if not lanes:
        return None
    longest = max(lanes, key=lambda task: instance.tasks[task].steps)
    steps = instance.tasks[longest].steps
    fixed = {
        seat: steps * _mixed(instance.base(longest, seat), floor_share, 1.0)[0]
        for seat in _seats(instance, longest)
    }
    return lambda prices: min(prices[seat] * seconds for seat, seconds in fixed.items())
