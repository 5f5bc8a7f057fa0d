"""Who waits in a simulation, in order; tasks that are alike are asked for by their first one."""

import heapq
from bisect import insort
from collections.abc import Iterator

from slidepack.daemon.planner.instance import Instance

__all__ = ["Waiting"]


class Waiting:
    """The queue. Where the first of some that are alike is refused, so are the others."""

    def __init__(self, instance: Instance, position: list[int], seats: dict[int, tuple[int, ...]]):
        """Begin empty.

        Args:
            instance: the problem.
            position: of each task in the order.
            seats: on which each task may run.
        """
        self._instance, self._position, self._seats = instance, position, seats
        self._likenesses: dict[int, tuple[object, ...]] = {}
        self._alike: dict[tuple[object, ...], list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        """Return whether anybody waits."""
        return bool(self._alike)

    def add(self, task: int) -> None:
        """Put a task into its place."""
        likeness = self._likenesses[task] = self._likeness(task)
        queue = self._alike.setdefault(likeness, [])
        insort(queue, (self._position[task], task), key=lambda entry: -entry[0])

    def in_turn(self) -> Iterator[int]:
        """Yield the first of each kind in order; `take` what can go, then the next is asked.

        A task that is yielded and not taken was refused: nobody like it is asked.
        """
        heads = [(queue[-1], likeness) for likeness, queue in self._alike.items()]
        order = [(entry[0], number, entry[1]) for number, (entry, _) in enumerate(heads)]
        heapq.heapify(order)
        while order:
            _, number, task = heapq.heappop(order)
            yield task
            queue = self._alike.get(heads[number][1])
            if queue and queue[-1][1] != task:
                place, following = queue[-1]
                heapq.heappush(order, (place, number, following))

    def take(self, task: int) -> None:
        """Remove the task that was yielded last."""
        likeness = self._likenesses[task]
        queue = self._alike[likeness]
        assert queue[-1][1] == task
        queue.pop()
        if not queue:
            del self._alike[likeness]

    def _likeness(self, task: int) -> tuple[object, ...]:
        asked = self._instance.tasks[task]
        if asked.full is not None:
            return (task,)
        return (
            asked.model,
            asked.tokens,
            asked.step_tokens,
            asked.params,
            self._instance.rows[task],
            asked.priority,
            self._seats[task],
        )
