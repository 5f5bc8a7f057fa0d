"""Appends events to the run folder's events file."""

import errno
import os
import time
from pathlib import Path
from typing import Final, Self

from slidepack.engine.contract.events import AnyEvent, encode_event

_CLOSED: Final = -1
"""No descriptor: a number that was given back may be another file's by now."""


class EventLog:
    """One writer of one events file; each event is one `write`, so a reader sees whole lines."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Make the events durable and close the file."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def append(self, event: AnyEvent) -> None:
        """Append one event.

        Raises:
            OSError: the disk refused, or took only a part of the line.
        """
        line = encode_event(event)
        written = os.write(self._descriptor, line)
        if written != len(line):
            # Whoever reads on must not take the next event for the rest of this one.
            os.write(self._descriptor, b"\n")
            raise OSError(errno.ENOSPC, "the events file took only a part of a line")

    @staticmethod
    def now() -> float:
        """Return the time for an event's `at`, unix seconds."""
        return time.time()
