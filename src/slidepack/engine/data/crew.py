"""Processes that do the tasks of one job side by side, each with what it needs loaded once."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["Crew"]

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")

_GIVEN_AHEAD: Final = 2
"""Tasks that a process has in hand, so that none waits for the next."""


class Crew(Generic[_Task, _Found]):
    """Processes that wait for tasks; they end with the block, and with the process they are of."""

    def __init__(self, size: int, prepare: Callable[[], Callable[[_Task], _Found]]) -> None:
        """Start the processes.

        Args:
            size: how many.
            prepare: called once in each; returns what does a task. It travels by pickle.
        """
        # Started afresh, not forked: the caller may have threads.
        context = multiprocessing.get_context("spawn")
        self._processes = []
        self._given: dict[Connection, deque[int]] = {}
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, prepare), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._given[ours] = deque()

    def __enter__(self) -> Self:
        """Return the crew."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes, whatever they are at."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for pipe in self._given:
            pipe.close()

    def results(self, tasks: Iterable[_Task]) -> Iterator[_Found]:
        """Yield what each task gave, in the order of the tasks.

        Raises:
            SlidepackError: that of a task or of `prepare`, or RUN-CRASHED where a process ended.
        """
        numbered = iter(enumerate(tasks))
        for _ in range(_GIVEN_AHEAD):
            for pipe in self._given:
                self._give(pipe, numbered)
        found: dict[int, _Found] = {}
        turn = 0
        while busy := [pipe for pipe, given in self._given.items() if given]:
            answered = wait(busy)
            for pipe in (one for one in busy if one in answered):
                found[self._given[pipe].popleft()] = self._take(pipe)
                self._give(pipe, numbered)
            while turn in found:
                yield found.pop(turn)
                turn += 1

    def _give(self, pipe: Connection, numbered: Iterator[tuple[int, _Task]]) -> None:
        for number, task in numbered:
            self._given[pipe].append(number)
            # Why a process is gone is told where its answer is missed.
            with contextlib.suppress(ConnectionError):
                pipe.send(task)
            return

    def _take(self, pipe: Connection) -> _Found:
        try:
            found: _Found | ErrorReport = pipe.recv()
        except (EOFError, ConnectionError) as error:
            process = self._processes[list(self._given).index(pipe)]
            process.join()
            raise SlidepackError(
                "RUN-CRASHED",
                "A process that measured rows ended before it was done.",
                why=f"it ended with code {process.exitcode}",
                fix="Run the check again; where it ends so again, there may be too little memory.",
            ) from error
        if isinstance(found, ErrorReport):
            raise SlidepackError.from_report(found)
        return found


def _serve(pipe: Connection, prepare: Callable[[], Callable[[_Task], _Found]]) -> None:
    """Do tasks until nobody hands them out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            work = prepare()
            while True:
                pipe.send(work(pipe.recv()))
        except SlidepackError as error:
            # Exceptions with fields of their own do not travel between processes.
            pipe.send(error.report)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
