"""Which packs a seat can carry, and what a step of each costs: what packing is to the solver.

Tasks that are alike are one kind, and seats that are alike one place, so that a pack is a few
numbers: how many lanes of each kind. Every step that a plan makes is a step of such a pack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.instance import Instance, keeps_activations
from slidepack.daemon.planner.schedule import Placement, Schedule
from slidepack.daemon.planner.tasks import BaseOnDevice

__all__ = ["Kind", "Layout", "Pack", "Place", "Room", "packs_of", "rooms_of", "solo_packs"]

_MOST_ROWS: Final = 3
"""Lengths of the longest row that are told apart; more would be as many problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Tasks that are alike in all that a pack can tell."""

    tasks: tuple[int, ...]
    seats: tuple[int, ...]
    """On which they may run."""
    steps: int
    """Of each of them."""

    @property
    def first(self) -> int:
        """One of them, to ask what all are like."""
        return self.tasks[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Seats that are alike."""

    seats: tuple[int, ...]
    kinds: tuple[int, ...]
    """That may run there."""

    @property
    def first(self) -> int:
        """One of them, to ask what all are like."""
        return self.seats[0]


@dataclass(frozen=True, slots=True)
class Pack:
    """Lanes that make steps together, or a full run."""

    place: int
    counts: tuple[tuple[int, int], ...]
    """Kinds, and how many lanes of each."""
    seconds: float
    """Of a step, with each lane's share of what it takes once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """One of the ways in which two lanes or more can share a place. Together the rooms of a place
    hold every pack that the simulation lets be, and perhaps some more."""

    place: int
    model: str
    kinds: tuple[int, ...]
    adapter_bytes: float
    """For the adapters."""
    most_step_tokens: float
    """Of all lanes, in their largest steps."""
    slowdown: float


class Layout:
    """The kinds and places of a problem."""

    def __init__(self, instance: Instance, tasks: Sequence[int]) -> None:
        """Sort the tasks, all of which fit somewhere, into kinds, and the seats into places."""
        self.instance = instance
        self.kinds = _kinds(instance, tasks)
        self.places = _places(instance, self.kinds)
        self.limits = _limits(instance, self.places)
        """Places that share a device, and how many devices there are of each such kind."""
        self.kind_of = {task: n for n, kind in enumerate(self.kinds) for task in kind.tasks}
        self.place_of = {seat: n for n, place in enumerate(self.places) for seat in place.seats}

    def pack(self, place: int, counts: Mapping[int, int]) -> Pack | None:
        """Return a pack with its cost; None where it does not fit."""
        chosen = tuple(sorted((kind, many) for kind, many in counts.items() if many))
        seat = self.places[place].first
        seconds = self._step_seconds(seat, chosen)
        if seconds is None:
            return None
        once = sum(many * self.once_a_step(kind, seat) for kind, many in chosen)
        return Pack(place, chosen, seconds + once)

    def once_a_step(self, kind: int, seat: int) -> float:
        """Return what a lane takes once, by its steps: nothing where it has joined already."""
        task = self.kinds[kind].first
        if self.instance.running_seat[task] is not None:
            return 0.0
        return self.instance.once_seconds(task, seat) / self.kinds[kind].steps

    def _step_seconds(self, seat: int, chosen: tuple[tuple[int, int], ...]) -> float | None:
        instance = self.instance
        first = self.kinds[chosen[0][0]].first
        if sum(many for _, many in chosen) == 1:
            return instance.step_seconds(first, seat)
        lanes = [(instance.tasks[self.kinds[kind].first], many) for kind, many in chosen]
        base, found = instance.base(first, seat), instance.seats[seat]
        many_lanes = sum(many for _, many in lanes)
        params = sum(many * task.params for task, many in lanes)
        longest = max(task.row_tokens for task, _ in lanes)
        step_tokens = sum(many * task.step_tokens for task, many in lanes)
        used = base.fixed_bytes + round(params * base.bytes_per_param) + base.recompute.of(longest)
        if used > found.memory_bytes or (found.max_lanes and many_lanes > found.max_lanes):
            return None
        if base.most_params is not None and params > base.most_params:
            return None
        keeps = keeps_activations(base, found.memory_bytes, params, longest, step_tokens)
        tokens = sum(many * task.tokens for task, many in lanes)
        return base.cost.seconds(tokens, many_lanes, 1.0 if keeps else base.recompute_slowdown)


def solo_packs(layout: Layout) -> Iterator[Pack]:
    """Yield each kind alone on each place."""
    for number, place in enumerate(layout.places):
        for kind in place.kinds:
            pack = layout.pack(number, {kind: 1})
            assert pack is not None
            yield pack


def packs_of(layout: Layout, schedule: Schedule) -> Iterator[Pack]:
    """Yield the packs that a schedule plays."""
    by_seat: dict[int, list[Placement]] = {}
    for placement in schedule.placements:
        if placement.task in layout.kind_of:
            by_seat.setdefault(placement.seat, []).append(placement)
    for seat, here in by_seat.items():
        changes = [(p.begin, 1, p.task) for p in here] + [(p.end, -1, p.task) for p in here]
        counts: dict[int, int] = {}
        before = 0.0
        for instant, change, task in sorted(changes):
            if instant > before and any(counts.values()):
                pack = layout.pack(layout.place_of[seat], counts)
                if pack is not None:
                    yield pack
            kind = layout.kind_of[task]
            counts[kind] = counts.get(kind, 0) + change
            before = instant


def rooms_of(layout: Layout) -> Iterator[Room]:
    """Yield all ways in which two lanes or more can be in a pack."""
    instance = layout.instance
    for number, place in enumerate(layout.places):
        for model in sorted({instance.tasks[layout.kinds[k].first].model for k in place.kinds}):
            if model not in instance.seats[place.first].bases:
                continue
            lanes = [
                kind
                for kind in place.kinds
                if instance.tasks[layout.kinds[kind].first].full is None
                and instance.tasks[layout.kinds[kind].first].model == model
            ]
            if sum(len(layout.kinds[kind].tasks) for kind in lanes) > 1:
                yield from _rooms(layout, number, model, lanes)


def _rooms(layout: Layout, place: int, model: str, lanes: Sequence[int]) -> Iterator[Room]:
    instance = layout.instance
    seat = instance.seats[layout.places[place].first]
    base = seat.bases[model]
    rows = {kind: instance.tasks[layout.kinds[kind].first].row_tokens for kind in lanes}
    for shortest, longest in _brackets(sorted(set(rows.values()))):
        inside = tuple(kind for kind in lanes if rows[kind] <= longest)
        fewest = _fewest_step_tokens(layout, inside)
        for beside, most_step_tokens, slowdown in _ways(base, shortest, fewest):
            # What is allowed is compared after rounding to whole bytes.
            room = seat.memory_bytes - base.fixed_bytes - beside + 1.0
            if base.most_params is not None:
                room = min(room, base.most_params * base.bytes_per_param)
            if room > 0.0:
                yield Room(
                    place=place,
                    model=model,
                    kinds=inside,
                    adapter_bytes=room,
                    most_step_tokens=most_step_tokens,
                    slowdown=slowdown,
                )


def _ways(base: BaseOnDevice, shortest: int, fewest: int) -> Iterator[tuple[int, float, float]]:
    """Yield bytes beside the adapters, the most step tokens, and the slowdown."""
    endless = float("inf")
    yield base.recompute.of(shortest), endless, base.recompute_slowdown
    if base.keep is None:
        return
    # A pass that keeps its activations is as large as the steps of its lanes, up to a limit.
    full = max(base.keep_tokens, shortest)
    lower = max(fewest, shortest)
    while lower < full:
        upper = min(2 * lower, full)
        yield base.keep.of(lower), float(upper), 1.0
        lower = upper
    yield base.keep.of(full), endless, 1.0


def _fewest_step_tokens(layout: Layout, kinds: Sequence[int]) -> int:
    """Return the step tokens of the two smallest lanes together."""
    sizes = [
        layout.instance.tasks[task].step_tokens
        for kind in kinds
        for task in layout.kinds[kind].tasks[:2]
    ]
    return sum(sorted(sizes)[:2])


def _brackets(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return the shortest and the longest row of each bracket of the longest rows of packs."""
    size = -(-len(rows) // _MOST_ROWS)
    return [
        (rows[start], rows[min(start + size, len(rows)) - 1]) for start in range(0, len(rows), size)
    ]


def _kinds(instance: Instance, tasks: Sequence[int]) -> list[Kind]:
    found: dict[tuple[object, ...], list[int]] = {}
    for task in tasks:
        asked, running = instance.tasks[task], instance.running_seat[task]
        like = (asked.model, asked.tokens, asked.step_tokens, asked.params, asked.row_tokens)
        alone = task if asked.full is not None else None
        where = running is not None, _allowed(instance, task)
        found.setdefault((*like, asked.steps, alone, where), []).append(task)
    return [
        Kind(
            tasks=tuple(members),
            seats=_allowed(instance, members[0]),
            steps=instance.tasks[members[0]].steps,
        )
        for members in found.values()
    ]


def _allowed(instance: Instance, task: int) -> tuple[int, ...]:
    """Return where a task may run: what runs already stays."""
    running = instance.running_seat[task]
    return instance.fitting[task] if running is None else (running,)


def _places(instance: Instance, kinds: Sequence[Kind]) -> list[Place]:
    """Return the seats by what they are like; each by itself where some are groups of others."""
    alone = any(seat.degree > 1 for seat in instance.seats)
    found: list[tuple[object, list[int], tuple[int, ...]]] = []
    for number, seat in enumerate(instance.seats):
        here = tuple(n for n, kind in enumerate(kinds) if number in kind.seats)
        if not here:
            continue
        seconds = [instance.step_seconds(kinds[n].first, number) for n in here]
        like = (number if alone else -1, seat.memory_bytes, seat.max_lanes, seat.bases, seconds)
        for known, members, same in found:
            if known == like and same == here:
                members.append(number)
                break
        else:
            found.append((like, [number], here))
    return [Place(seats=tuple(members), kinds=here) for _, members, here in found]


def _limits(instance: Instance, places: Sequence[Place]) -> list[tuple[int, tuple[int, ...]]]:
    if all(seat.degree == 1 for seat in instance.seats):
        return [(len(place.seats), (number,)) for number, place in enumerate(places)]
    shared = [
        tuple(n for n, place in enumerate(places) if device in instance.seats[place.first].devices)
        for device in range(len(instance.devices))
    ]
    return [(1, members) for members in shared if members]
