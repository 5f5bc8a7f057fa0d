"""A planning problem, looked up and checked once: what fits where, and who waits for whom."""

import copy
from collections.abc import Sequence
from typing import Final

from slidepack.daemon.planner.hours import Hours
from slidepack.daemon.planner.seats import Seat, seats_of
from slidepack.daemon.planner.tasks import BaseOnDevice, Device, Task, Window

__all__ = ["Instance", "keeps_activations", "kept_tokens", "lane_bytes"]

_NEVER: Final = float("inf")


class Instance:
    """Tasks by number, seats by number, and open seconds for all times."""

    def __init__(
        self,
        tasks: Sequence[Task],
        devices: Sequence[Device],
        windows: Sequence[Window],
        now: float,
        degrees: Sequence[int] = (1,),
    ) -> None:
        """Look everything up.

        Raises:
            ValueError: two tasks or two devices have the same key.
        """
        self.tasks, self.devices = list(tasks), list(devices)
        self.rows = [task.row_tokens for task in tasks]
        self.number = {task.key: index for index, task in enumerate(tasks)}
        if len(self.number) < len(tasks) or len({d.key for d in devices}) < len(devices):
            raise ValueError("two tasks or two devices have the same key; give each its own")
        self.hours = Hours(windows, now)
        self.now = now
        self.seats = seats_of(devices, degrees)
        self.free_from = [self._begins(seat.free_from) for seat in self.seats]
        self.released = [
            0.0 if task.not_before is None else self._begins(task.not_before) for task in tasks
        ]
        self.deadlines = [
            _NEVER if task.deadline is None else self.hours.open_seconds(task.deadline)
            for task in tasks
        ]
        self.missing = {
            index: tuple(key for key in task.after if key not in self.number)
            for index, task in enumerate(tasks)
        }
        self.waits_for = [
            tuple({self.number[key] for key in task.after if key in self.number}) for task in tasks
        ]
        self.circular = self._circular()
        self.fitting = [self._fitting(task) for task in self.tasks]
        """Seats on which a task fits alone, by task."""
        self.running_seat = [self._running_seat(task) for task in self.tasks]

    def _begins(self, instant: float) -> float:
        """Return the open seconds before an instant; never, where no hour is known after it."""
        opened = self.hours.open_seconds(instant)
        return opened if opened < self.hours.total else _NEVER

    def from_scratch(self) -> "Instance":
        """Return the same problem with nothing running yet and no hour closed."""
        other = copy.copy(self)
        other.hours = Hours((), self.now)
        other.running_seat = [None] * len(self.tasks)
        return other

    def base(self, task: int, seat: int) -> BaseOnDevice:
        """Return how the base of a task trains on a seat that it fits."""
        return self.seats[seat].bases[self.tasks[task].model]

    def allowed(self, task: int, degree: int) -> tuple[int, ...]:
        """Return seats of the degree, or of the next one on which the task fits."""
        for wanted in sorted({self.seats[seat].degree for seat in self.fitting[task]}):
            if wanted >= degree or wanted == self._most_degree(task):
                return tuple(s for s in self.fitting[task] if self.seats[s].degree == wanted)
        return ()

    def solo_seconds(self, task: int, seat: int) -> float:
        """Return the seconds of a task that is alone on a seat, without its start."""
        asked = self.tasks[task]
        return asked.steps * self.step_seconds(task, seat)

    def step_seconds(self, task: int, seat: int) -> float:
        """Return the seconds of a step of a task that is alone on a seat."""
        asked = self.tasks[task]
        if asked.full is not None:
            return asked.full.step_seconds[self.seats[seat].keys[0]]
        base = self.base(task, seat)
        keeps = keeps_activations(
            base, self.seats[seat].memory_bytes, asked.params, asked.row_tokens, asked.step_tokens
        )
        slowdown = 1.0 if keeps else base.recompute_slowdown
        return base.cost.seconds(asked.tokens, 1, slowdown)

    def startup_seconds(self, task: int, seat: int) -> float:
        """Return the seconds until the first step of a worker that is started for a task."""
        full = self.tasks[task].full
        return self.base(task, seat).startup_seconds if full is None else full.startup_seconds

    def once_seconds(self, task: int, seat: int) -> float:
        """Return the seconds in which others on a seat make no step because of a task."""
        full = self.tasks[task].full
        return self.base(task, seat).lane_seconds_once if full is None else 0.0

    def best_solo_seconds(self, task: int) -> float:
        """Return the fewest seconds of a task alone, without its start."""
        return min((self.solo_seconds(task, seat) for seat in self.fitting[task]), default=_NEVER)

    def needed_bytes(self, task: int, seat: int) -> int:
        """Return the least bytes of a lane that is alone on a seat whose base is known."""
        return lane_bytes(self.base(task, seat), self.tasks[task].params, self.tasks[task])

    def _fitting(self, task: Task) -> tuple[int, ...]:
        if task.full is not None:
            known = task.full.step_seconds
            return tuple(
                index
                for index, seat in enumerate(self.seats)
                if seat.degree == 1 and seat.keys[0] in known
            )
        return tuple(
            index
            for index, seat in enumerate(self.seats)
            if task.model in seat.bases and _fits(seat, seat.bases[task.model], task)
        )

    def _running_seat(self, task: Task) -> int | None:
        if not task.running_on:
            return None
        wanted = set(task.running_on)
        for index, seat in enumerate(self.seats):
            known = task.full is not None or task.model in seat.bases
            if set(seat.keys) == wanted and known:
                in_full = task.full is None or seat.keys[0] in task.full.step_seconds
                return index if in_full else None
        return None

    def _most_degree(self, task: int) -> int:
        return max(self.seats[seat].degree for seat in self.fitting[task])

    def _circular(self) -> frozenset[int]:
        """Return the tasks that wait for themselves, or for one that does."""
        left = {index: set(others) for index, others in enumerate(self.waits_for)}
        ready = [index for index, others in left.items() if not others]
        blocks: dict[int, list[int]] = {}
        for index, others in left.items():
            for other in others:
                blocks.setdefault(other, []).append(index)
        seen = 0
        while ready:
            done = ready.pop()
            seen += 1
            for index in blocks.get(done, ()):
                left[index].discard(done)
                if not left[index]:
                    ready.append(index)
        return frozenset(index for index, others in left.items() if others)


def _fits(seat: Seat, base: BaseOnDevice, task: Task) -> bool:
    few = base.most_params is None or task.params <= base.most_params
    return few and lane_bytes(base, task.params, task) <= seat.memory_bytes


def lane_bytes(base: BaseOnDevice, params: int, task: Task) -> int:
    """Return the bytes of a pack whose longest row is the task's."""
    adapters = round(params * base.bytes_per_param)
    return base.fixed_bytes + adapters + base.recompute.of(task.row_tokens)


def keeps_activations(
    base: BaseOnDevice, memory_bytes: int, params: int, row_tokens: int, step_tokens: int
) -> bool:
    """Return whether a pack leaves the room to keep its activations."""
    if base.keep is None:
        return False
    adapters = params * base.bytes_per_param
    kept = base.keep.of(kept_tokens(base, row_tokens, step_tokens))
    return base.fixed_bytes + adapters + kept <= memory_bytes


def kept_tokens(base: BaseOnDevice, row_tokens: int, step_tokens: int) -> int:
    """Return the tokens of the smallest pass for which activations are kept."""
    return max(row_tokens, min(step_tokens, base.keep_tokens))
