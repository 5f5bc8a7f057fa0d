"""Commands in, events out: JSON lines over two pipes, whose other ends may die at any time."""

import os
import select
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final

from slidepack.engine.chat.contract import MOST_LINE_BYTES
from slidepack.engine.chat.events import AnyEvent, encode_event

__all__ = ["Inbox", "LongLine", "Outbox", "OutboxClosedError", "protocol_output"]

_PIPE_BYTES: Final = 4096
"""A pipe that takes anything takes as much as this without waiting."""
_LOOK_SECONDS: Final = 0.2


class OutboxClosedError(Exception):
    """Nobody reads the events any more, or the process is to end and its reader does not read."""


class LongLine(bytes):
    """The beginning of a line that was too long."""


def protocol_output() -> int:
    """Keep standard output for events: whatever else prints there goes to standard error.

    Returns:
        The descriptor for events.
    """
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


class Inbox:
    """Lines of a pipe, read by a thread; `None` wakes whoever waits for one."""

    def __init__(self, file: BinaryIO) -> None:
        """Begin to read."""
        self.ended = False
        """Whether the last line has come: the caller is gone, or wants nothing more."""
        self._file = file
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def wake(self) -> None:
        """Let a waiting `take` return; may be called by a signal's handler."""
        self._lines.put(None)

    def take(self, *, wait: bool) -> bytes | None:
        """Return the next line; None where there is none now, or none any more.

        Args:
            wait: until a line comes, the last one has come, or `wake` is called.
        """
        try:
            return self._lines.get(block=wait)
        except Empty:
            return None

    def _read(self) -> None:
        while line := self._file.readline(MOST_LINE_BYTES):
            if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                line = LongLine(line[:200])
                while (rest := self._file.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
            if line.strip():
                self._lines.put(line)
        self.ended = True
        self.wake()


class Outbox:
    """Writes events; a reader that is slow holds the process up, but not its end."""

    def __init__(self, descriptor: int, is_ending: Callable[[], bool]) -> None:
        """Wrap a descriptor.

        Args:
            descriptor: of a pipe or a file.
            is_ending: whether the process was asked to end; then nothing waits for the reader.
        """
        self._descriptor = descriptor
        self._is_ending = is_ending

    def emit(self, event: AnyEvent) -> None:
        """Write an event.

        Raises:
            OutboxClosedError: nobody reads.
        """
        data = memoryview(encode_event(event))
        while data:
            self._wait()
            try:
                data = data[os.write(self._descriptor, data[:_PIPE_BYTES]) :]
            except BrokenPipeError as error:
                raise OutboxClosedError("nobody reads the events") from error

    def _wait(self) -> None:
        while not select.select([], [self._descriptor], [], _LOOK_SECONDS)[1]:
            if self._is_ending():
                raise OutboxClosedError("the reader does not read")
