"""Tells live pages that something changed: counters that threads bump and streams watch."""

import threading


class Changes:
    """Numbers that only grow. Reading them costs nothing, so a stream may poll them often."""

    def __init__(self) -> None:
        """Start at 0."""
        self._lock = threading.Lock()
        self._version = 0
        self._untold = 0

    @property
    def version(self) -> int:
        """Counts everything that changed."""
        return self._version

    @property
    def untold(self) -> int:
        """Counts the changes among them that no stored event tells of."""
        return self._untold

    def bump(self) -> None:
        """Say that something changed."""
        with self._lock:
            self._untold += 1
            self._version += 1

    def bump_events(self) -> None:
        """Say that events were stored, or a job's state moved with them, and nothing else."""
        with self._lock:
            self._version += 1
