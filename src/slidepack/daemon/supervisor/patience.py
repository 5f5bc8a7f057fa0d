"""How long a worker may take to leave: longer while it gets on, or writes its checkpoint."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slidepack.engine.contract.pulse import last_beat

_MOST: Final = 10.0
"""Times the usual limit: for a model that others wait for, and for what nobody needs."""
_STILL_SECONDS: Final = 10.0
"""After which a checkpoint that does not grow is none."""


class Patience:
    """Watches what workers do before they can leave, and the checkpoints that they write then."""

    def __init__(
        self, stop_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Name the limit of a worker that shows nothing, in seconds."""
        self._stop_seconds = stop_seconds
        self._monotonic = monotonic
        self._grown: dict[Path, tuple[int, float]] = {}
        self._beats: dict[Path, tuple[int | None, float]] = {}
        self._asked: dict[Path, float] = {}

    def waited(self, run_folder: Path, terminated: float | None, ready: bool) -> float:
        """Return for how many seconds a run has been asked to leave.

        Args:
            run_folder: its own.
            terminated: seconds since its worker was asked as a whole; None where only the run was.
            ready: whether its worker hears of single runs yet. One that loads a model does not, and
                has longer: others wait for what it loads.
        """
        now = self._monotonic()
        since = now - self._asked.setdefault(run_folder, now)
        if terminated is not None:
            return terminated
        return since if ready else since / _MOST

    def asked_for(self, run_folder: Path) -> float | None:
        """Return the seconds since a run was first asked; None where it was not."""
        asked = self._asked.get(run_folder)
        return None if asked is None else self._monotonic() - asked

    def is_over(self, run_folder: Path, waited_seconds: float, *, unwanted: bool = False) -> bool:
        """Return whether a worker has had its time; ask from the moment on that it was asked.

        A step is not left half done, and with state on drives its updates take minutes. So the
        time begins anew whenever the worker has got on, however long that goes on: what it must
        end is of some size. One that hangs is given its time once more, and no longer. Files that
        grow are progress too, of those who tell nothing else while they write.

        Args:
            run_folder: its own.
            waited_seconds: since it was asked to leave.
            unwanted: nobody needs its step; only a checkpoint under way is waited for, and that
                not for ever.
        """
        quiet = waited_seconds
        if not unwanted:
            quiet = min(quiet, self._quiet_seconds(run_folder))
        if quiet <= self._stop_seconds:
            return False
        if unwanted and quiet > _MOST * self._stop_seconds:
            return True
        return not self._grows(run_folder)

    def forget(self, run_folder: Path) -> None:
        """Drop what is known of a worker that has ended."""
        self._grown.pop(run_folder, None)
        self._beats.pop(run_folder, None)
        self._asked.pop(run_folder, None)

    def _quiet_seconds(self, run_folder: Path) -> float:
        """Return the seconds since a worker was seen to get on; endless where it was not."""
        now, beat = self._monotonic(), last_beat(run_folder)
        # What it told before the first look may be of long ago.
        before, since = self._beats.get(run_folder, (beat, -math.inf))
        if beat != before:
            since = now
        self._beats[run_folder] = (beat, since)
        return now - since

    def _grows(self, run_folder: Path) -> bool:
        now = self._monotonic()
        size = _unfinished_bytes(run_folder)
        before, since = self._grown.get(run_folder, (0, now))
        if size != before:
            since = now
        self._grown[run_folder] = (size, since)
        return size > 0 and now - since < _STILL_SECONDS


def _unfinished_bytes(run_folder: Path) -> int:
    """Return the size of what is being written: its name begins with a dot until it is whole."""
    total = 0
    for folder in (run_folder, run_folder / "checkpoints"):
        for path in folder.glob(".*.tmp*/**/*"):
            try:
                total += path.stat().st_size
            except OSError:
                # It was renamed or removed meanwhile.
                continue
    return total
