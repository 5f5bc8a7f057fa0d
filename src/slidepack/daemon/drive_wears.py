"""What the drives told of their wear, kept: their tools may take seconds."""

import threading
import time
from pathlib import Path
from typing import Final

from slidepack.daemon.probe.endurance import DriveWear, read_wear

__all__ = ["DriveWears"]

_ROOT: Final = Path("/")
_KEPT_SECONDS: Final = 3600.0
"""How long a drive's own log is good for."""


class DriveWears:
    """Asked for by any thread."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._known: dict[Path, tuple[float, DriveWear]] = {}
        self._lock = threading.Lock()

    def of(self, disk: Path) -> DriveWear:
        """Return how worn a drive is, by its folder in `sys`; it is asked once an hour."""
        with self._lock:
            asked, found = self._known.get(disk, (float("-inf"), None))
        if found is None or time.monotonic() - asked > _KEPT_SECONDS:
            return self.ask(disk)
        return found

    def ask(self, disk: Path) -> DriveWear:
        """Return the same, asking the drive now."""
        found = read_wear(_ROOT, disk)
        with self._lock:
            self._known[disk] = time.monotonic(), found
        return found
