"""Attempts at one run that are killed, each going on from what those before it left."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from slidepack.engine.contract.events import Started
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.runfolder import RunFolder
from support.full_worker import Worker, events_of
from support.runs import make_run
from support.waiting import wait_until

MakeAttempt = Callable[[Path, JobSpec, int, tuple[str, ...]], RunFolder]
"""Makes the folder of an attempt: where, of what, its number, and the checkpoints so far."""


def _plain(root: Path, spec: JobSpec, attempt: int, resume_from: tuple[str, ...]) -> RunFolder:
    return make_run(root, spec, attempt=attempt, resume_from=resume_from)


class Chain:
    """Attempts at one run, each going on from the checkpoints of those before."""

    def __init__(self, root: Path, spec: JobSpec, make: MakeAttempt = _plain) -> None:
        """Begin without attempts."""
        self._root = root
        self._spec = spec
        self._make = make
        self.attempts: list[RunFolder] = []

    def next(self) -> RunFolder:
        """Make the next attempt's folder."""
        found = [path for one in reversed(self.attempts) for path in one.list_checkpoints()]
        number = len(self.attempts) + 1
        folder = self._make(self._root / str(number), self._spec, number, tuple(map(str, found)))
        self.attempts.append(folder)
        return folder


def unfinished(folder: RunFolder) -> list[Path]:
    """Return checkpoints that are, or were, being written."""
    return list(folder.checkpoints.glob(".*.tmp"))


def started(folder: RunFolder) -> Started:
    """Return the event of a run that has started."""
    (event,) = (event for event in events_of(folder) if isinstance(event, Started))
    return event


def kill_after(folder: RunFolder, worker: Worker, seconds: float, *, started: bool) -> None:
    """Kill some time after the start of the training, or of the process."""
    if started:
        wait_until(
            lambda: (
                worker.poll() is not None or any(isinstance(e, Started) for e in events_of(folder))
            )
        )
    time.sleep(seconds)
    worker.send(signal.SIGKILL)
    worker.wait()
