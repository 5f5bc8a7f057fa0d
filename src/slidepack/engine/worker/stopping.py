"""Stop requests: SIGTERM, SIGINT or a control command ask the worker to checkpoint and leave."""

import signal
import time
from types import FrameType


class StopRequestedError(Exception):
    """Raised at the next safe point after a stop was asked for."""


class StopFlag:
    """Remembers that a stop was asked for, and by what."""

    def __init__(self) -> None:
        """Start with no stop asked for."""
        self.reason = ""
        self._asked = 0.0

    def listen(self) -> None:
        """Take SIGTERM and SIGINT of this process."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def request(self, reason: str) -> None:
        """Ask for a stop."""
        if not self.reason:
            self.reason = reason
            self._asked = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the stop was asked for; 0 where none was."""
        return time.monotonic() - self._asked if self.reason else 0.0

    def check(self) -> None:
        """Raise where a stop was asked for.

        Raises:
            StopRequestedError: it was.
        """
        if self.reason:
            raise StopRequestedError(self.reason)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
