"""Tells live pages that something changed: a counter that threads bump and streams watch."""

import threading


class Changes:
    """A number that only grows. Reading it costs nothing, so a stream may poll it often."""

    def __init__(self) -> None:
        """Start at 0."""
        self._lock = threading.Lock()
        self._version = 0

    @property
    def version(self) -> int:
        """The current count."""
        return self._version

    def bump(self) -> None:
        """Say that something changed."""
        with self._lock:
            self._version += 1
