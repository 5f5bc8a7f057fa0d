"""Tells the daemon that a step or its updates get on: neither can be left half done."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slidepack.engine.contract.pulse import PULSE_FILE

__all__ = ["Pulse"]

_SECONDS: Final = 0.5
"""Between two signs: half of the shortest time that a worker may be given to leave."""


class Pulse:
    """A file in the run folder whose time is set anew, from any thread."""

    def __init__(self, run_folder: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Name the run's folder; there is no file before the first sign."""
        self._path = run_folder / PULSE_FILE
        self._monotonic = monotonic
        self._last: float | None = None

    def beat(self) -> None:
        """Say that something was done; at once where the last sign is not of just now."""
        now = self._monotonic()
        if self._last is not None and now - self._last < _SECONDS:
            return
        self._last = now
        # A disk that is full or gone ends a run where it needs it, not here.
        with contextlib.suppress(OSError):
            self._path.touch()
