"""Optimizer updates beside the passes: what is waiting, what is done, and what went wrong."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Job", "StepSettings", "UpdateQueue", "Updates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """AdamW's numbers in one step; see `kernels.adamw`."""

    scalars_host: Tensor
    scalars_device: Tensor
    beta1: float
    beta2: float
    eps: float


@dataclass(order=True, slots=True)
class Job:
    """The update of a unit, or of a piece of one."""

    priority: int
    """The next forward pass needs low numbers first."""
    unit: int = field(compare=False)
    grad: Tensor = field(compare=False)
    """[elements], on the card or in host memory."""
    landed: torch.cuda.Event | None = field(compare=False)
    """When the gradient is there."""
    settings: StepSettings = field(compare=False)
    consumed: Callable[[torch.cuda.Event | None], None] = field(compare=False)
    """Called when nothing reads the gradient after an event any more."""
    resident: Tensor | None = field(compare=False, default=None)
    """The weights on the card, where they stay there: the card's engine renews them."""
    start: int = field(compare=False, default=0)
    """First element of the unit that this is about; a gradient may come in pieces."""

    def has_landed(self) -> bool:
        """Return whether the gradient is there."""
        if self.landed is None:
            return True
        return bool(self.landed.query())  # type: ignore[no-untyped-call]  # torch has no types here


class Updates:
    """Which units have an update under way. Shared by the walk and the engines' threads."""

    def __init__(self, units: int, on_progress: Callable[[], None] = lambda: None) -> None:
        """Begin with every unit done.

        Args:
            units: how many.
            on_progress: called, by any thread, when the walk or an engine has got on.
        """
        self.advance = on_progress
        """Tells of smaller parts than a unit."""
        self._changed = threading.Condition()
        self._running = [0] * units
        self._last_copy: list[torch.cuda.Event | None] = [None] * units
        self._error: BaseException | None = None

    def begin(self, unit: int, pieces: int = 1) -> None:
        """Say that a unit's weights are about to change, piece by piece.

        Raises:
            BaseException: whatever an engine died of.
        """
        with self._changed:
            self._raise()
            self._running[unit] = pieces
            self._last_copy[unit] = None
        self.advance()

    def finish(self, unit: int, last_copy: torch.cuda.Event | None) -> None:
        """Say that the host has, or after an event will have, new weights of a piece."""
        with self._changed:
            self._running[unit] -= 1
            if last_copy is not None:
                self._last_copy[unit] = last_copy
            self._changed.notify_all()
        self.advance()

    def cancel(self, unit: int) -> None:
        """Say that a unit's weights stay as they are after all."""
        with self._changed:
            self._running[unit] = 0
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Hand an engine's error to whoever waits."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def is_ready(self, unit: int) -> bool:
        """Return whether `await_unit` would return at once."""
        return not self._running[unit]

    def await_unit(self, unit: int) -> torch.cuda.Event | None:
        """Wait for a unit's update; return the event after which host memory has its weights.

        Raises:
            BaseException: whatever an engine died of.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._running[unit])
            self._raise()
            last_copy = self._last_copy[unit]
        self.advance()
        return last_copy

    def drain(self) -> None:
        """Wait until host memory has every unit's weights.

        Raises:
            BaseException: whatever an engine died of.
        """
        for unit in range(len(self._running)):
            event = self.await_unit(unit)
            if event is not None:
                event.synchronize()

    def check(self) -> None:
        """Raise what an engine died of, if any did."""
        with self._changed:
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class UpdateQueue:
    """Jobs for one engine's thread: of those whose gradient is there, the most urgent one."""

    def __init__(self) -> None:
        """Begin empty."""
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a job; its gradient lands after those of the jobs that were added before."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def take(self) -> Job | None:
        """Wait for a job; None after `close`.

        The walk runs ahead of the card, so the newest job is the most urgent one and the last to
        land: an engine that took it would stand still beside work that could be done.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._jobs))
            if self._closed:
                return None
            return self._next()

    def _next(self) -> Job:
        landed = [job for job in self._jobs if job.has_landed()]
        job = min(landed) if landed else self._jobs[0]
        self._jobs.remove(job)
        return job

    def poll(self) -> Job | None:
        """Return what `take` would, or None where it would wait."""
        with self._changed:
            return None if self._closed or not self._jobs else self._next()

    def is_empty(self) -> bool:
        """Return whether `take` would wait."""
        with self._changed:
            return not self._jobs and not self._closed

    def close(self) -> None:
        """Let the thread end, whatever waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
