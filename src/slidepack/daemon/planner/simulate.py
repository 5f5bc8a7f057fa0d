"""Continuous join and leave over several seats: a lane that ends frees its place at once.

Time is in open seconds. All lanes of a pack make a step together, so a pack's clock counts steps,
and a lane ends a known number of them after it joined: only joins, leaves and the ends of windows
are events, whatever the number of steps.
"""

import heapq
import math
from collections.abc import Iterable

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.pack_state import PackState
from slidepack.daemon.planner.schedule import Placement, Schedule, Strategy, Wait
from slidepack.daemon.planner.waiting import Waiting

__all__ = ["simulate"]

_NOBODY = -1


def simulate(
    instance: Instance, strategy: Strategy, only: frozenset[int] | None = None
) -> Schedule:
    """Run a strategy.

    Args:
        instance: the problem.
        strategy: who goes first, and how full packs are.
        only: tasks to run; None is all. The others count as done.
    """
    chosen = range(len(instance.tasks)) if only is None else sorted(only)
    return _Simulation(instance, strategy, chosen).run()


class _Simulation:
    def __init__(self, instance: Instance, strategy: Strategy, chosen: Iterable[int]) -> None:
        self._instance, self._strategy = instance, strategy
        self._chosen = list(chosen)
        self._now = 0.0
        self._packs = [PackState(instance, strategy, seat) for seat in range(len(instance.seats))]
        self._owner = [_NOBODY] * len(instance.devices)
        """Seat whose pack a device works for."""
        self._kept_for = [_NOBODY] * len(instance.devices)
        """Task for which a device drains."""
        self._given_up = False
        self._schedule = Schedule()
        self._seats = {task: self._seats_of(task) for task in self._chosen}
        self._position = _positions(instance, strategy)
        self._waiting = Waiting(instance, self._position, self._seats)
        self._lowest = min((instance.tasks[task].priority for task in self._chosen), default=0)
        self._blocked: dict[int, set[int]] = {}
        self._blocks: dict[int, list[int]] = {}
        self._releases: list[tuple[float, int]] = []
        self._breaks = list(reversed(instance.hours.breaks))

    def run(self) -> Schedule:
        running = self._seat_running()
        self._queue_up([task for task in self._chosen if task not in running])
        self._admit(range(len(self._packs)))
        end = self._instance.hours.total
        while (instant := self._next_event()) < math.inf and instant <= end:
            self._now = instant
            freed = self._handle()
            if instant < end:
                self._admit(freed)
        self._close()
        return self._schedule

    def _seats_of(self, task: int) -> tuple[int, ...]:
        chosen = self._strategy.seat_of
        if chosen is not None and chosen[task] >= 0:
            return (chosen[task],) if chosen[task] in self._instance.fitting[task] else ()
        return self._instance.allowed(task, self._strategy.degree)

    def _seat_running(self) -> set[int]:
        """Let what runs stay where it is, where the strategy says so."""
        instance, kept = self._instance, set[int]()
        spans = instance.hours.spans
        opened = bool(spans) and spans[0][0] <= instance.now
        for task in self._chosen:
            seat = instance.running_seat[task]
            stays = task not in self._strategy.released
            if seat is not None and stays and self._could_stay(task, seat):
                self._join(task, seat, started=opened)
                kept.add(task)
            elif instance.tasks[task].running_on:
                self._schedule.moved.append(task)
        return kept

    def _could_stay(self, task: int, seat: int) -> bool:
        devices = self._instance.seats[seat].devices
        free = all(self._owner[device] in (_NOBODY, seat) for device in devices)
        return free and self._packs[seat].takes_model(task)

    def _queue_up(self, tasks: list[int]) -> None:
        instance = self._instance
        included = set(self._chosen)
        for task in tasks:
            if instance.missing[task] or task in instance.circular or not self._seats[task]:
                self._note(task, "dependency" if self._seats[task] else "memory")
                continue
            before = {other for other in instance.waits_for[task] if other in included}
            for other in before:
                self._blocks.setdefault(other, []).append(task)
            if before:
                self._blocked[task] = before
                self._note(task, "dependency")
            else:
                self._release(task)
        for instant in {seat for seat in instance.free_from if 0.0 < seat < math.inf}:
            heapq.heappush(self._releases, (instant, _NOBODY))

    def _release(self, task: int) -> None:
        """Queue a task that waits for no other, now or when its time has come."""
        instance = self._instance
        instant, why = instance.released[task], "not before"
        asked = instance.tasks[task]
        runs = instance.running_seat[task] is not None
        if runs and asked.move_seconds > instant:
            instant, why = asked.move_seconds, "moving"
        if instant > self._now:
            self._note(task, "moving" if why == "moving" else "not before")
            heapq.heappush(self._releases, (instant, task))
        else:
            self._waiting.add(task)

    def _next_event(self) -> float:
        instant = min((pack.next_end for pack in self._packs), default=math.inf)
        if self._releases:
            instant = min(instant, self._releases[0][0])
        if self._breaks and any(not pack.empty for pack in self._packs):
            instant = min(instant, self._breaks[-1])
        return instant

    def _handle(self) -> Iterable[int]:
        """Do what happens now; return the seats that may have room since."""
        freed = set[int]()
        for seat, pack in enumerate(self._packs):
            if pack.next_end <= self._now:
                for task in pack.take_ended(self._now):
                    begun = pack.leave(task)
                    self._schedule.placements.append(Placement(task, seat, begun, self._now))
                    self._unblock(task)
                freed.add(seat)
                if pack.empty:
                    freed |= self._vacate(seat)
        while self._breaks and self._breaks[-1] <= self._now:
            self._breaks.pop()
            for pack in self._packs:
                if not pack.empty:
                    pack.restart(self._now)
        came = False
        while self._releases and self._releases[0][0] <= self._now:
            _, task = heapq.heappop(self._releases)
            came = True
            if task != _NOBODY:
                self._waiting.add(task)
        return range(len(self._packs)) if came or self._unblocked() else sorted(freed)

    def _vacate(self, seat: int) -> set[int]:
        """Give a pack's devices back; return the seats that share one."""
        devices = set(self._instance.seats[seat].devices)
        for device in devices:
            self._owner[device] = _NOBODY
        seats = enumerate(self._instance.seats)
        return {other for other, found in seats if devices & set(found.devices)}

    def _unblock(self, ended: int) -> None:
        for task in self._blocks.pop(ended, ()):
            before = self._blocked[task]
            before.discard(ended)

    def _unblocked(self) -> bool:
        """Release who waits for nobody any more; return whether there was anybody."""
        free = [task for task, before in self._blocked.items() if not before]
        for task in free:
            del self._blocked[task]
            self._release(task)
        return bool(free)

    def _admit(self, seats: Iterable[int]) -> None:
        """Let tasks join the seats that may have room, in their order."""
        changed = set(seats)
        while changed and self._waiting:
            self._given_up = False
            for task in self._waiting.in_turn():
                seat = self._best_seat(task, changed)
                if seat is not None:
                    self._waiting.take(task)
                    self._join(task, seat)
            # What drained for a task that went elsewhere is there for the others.
            changed = set(range(len(self._packs))) if self._given_up else set()

    def _best_seat(self, task: int, changed: set[int]) -> int | None:
        """Return the seat among those that changed where a task would end first, if any."""
        best, first = None, math.inf
        why: Wait | None = None
        for seat in self._seats[task]:
            if seat not in changed:
                continue
            refused = self._refusal(task, seat)
            if refused is None:
                end = self._packs[seat].end_with(task, self._now)
                if end < first:
                    best, first = seat, end
            else:
                why = refused
        if best is None and why is not None:
            self._note(task, why)
            if why in ("other base", "whole device"):
                self._keep_for(task)
        return best

    def _refusal(self, task: int, seat: int) -> Wait | None:
        for device in self._instance.seats[seat].devices:
            if self._owner[device] not in (_NOBODY, seat):
                return "whole device"
            kept = self._kept_for[device]
            if kept not in (_NOBODY, task) and not self._goes_with(task, kept):
                return "reserved"
        return self._packs[seat].refusal(task, self._now)

    def _goes_with(self, task: int, kept: int) -> bool:
        """Return whether a task may use what drains for another: both want the same base there."""
        tasks = self._instance.tasks
        alike = tasks[task].model == tasks[kept].model
        return tasks[kept].full is None and tasks[task].full is None and alike

    def _keep_for(self, task: int) -> None:
        """Let a seat drain for a task that must have it empty and goes before others."""
        instance = self._instance
        asked = instance.tasks[task]
        if not asked.promised and asked.priority <= self._lowest:
            return
        if task in self._kept_for:
            return
        free = [
            seat
            for seat in self._seats[task]
            if all(self._kept_for[device] == _NOBODY for device in instance.seats[seat].devices)
        ]
        if free:
            for device in instance.seats[min(free, key=self._drained)].devices:
                self._kept_for[device] = task

    def _drained(self, seat: int) -> float:
        owners = {self._owner[device] for device in self._instance.seats[seat].devices}
        return max((self._packs[o].drained() for o in owners if o != _NOBODY), default=self._now)

    def _join(self, task: int, seat: int, *, started: bool = False) -> None:
        self._packs[seat].join(task, self._now, started=started)
        for device in self._instance.seats[seat].devices:
            self._owner[device] = seat
        for device, kept in enumerate(self._kept_for):
            if kept == task:
                self._kept_for[device] = _NOBODY
                self._given_up = True

    def _note(self, task: int, why: Wait) -> None:
        self._schedule.waits.setdefault(task, why)

    def _close(self) -> None:
        """Say who did not end."""
        ended = {placement.task for placement in self._schedule.placements}
        total = self._instance.hours.total
        for seat, pack in enumerate(self._packs):
            for task, begun in pack.begun.items():
                self._schedule.unfinished.append(Placement(task, seat, begun, total))
                ended.add(task)
        self._schedule.not_begun = [task for task in self._chosen if task not in ended]


def _positions(instance: Instance, strategy: Strategy) -> list[int]:
    """Return each task's place: promises by their deadlines, then priorities, then the order."""
    tasks, deadlines = instance.tasks, instance.deadlines
    place = {task: at for at, task in enumerate(strategy.order)}

    def key(task: int) -> tuple[bool, float, int, int]:
        asked = tasks[task]
        promise = deadlines[task] if asked.promised else math.inf
        return not asked.promised, promise, -asked.priority, place.get(task, len(place) + task)

    position = [0] * len(tasks)
    for at, task in enumerate(sorted(range(len(tasks)), key=key)):
        position[task] = at
    return position
