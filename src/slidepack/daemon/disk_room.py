"""Whether the disk has room for a run, above the floor that is kept free."""

import shutil
from pathlib import Path


class DiskRoom:
    """The disk of the data directory."""

    def __init__(self, home: Path, floor_bytes: int) -> None:
        """Name a folder on the disk, and how many bytes stay free."""
        self._home = home
        self.floor_bytes = floor_bytes

    def shortage(self, needed: int) -> str:
        """Return why so many bytes do not fit, in words; empty where they do.

        Raises:
            OSError: the disk does not answer.
        """
        free = shutil.disk_usage(self._home).free
        if needed + self.floor_bytes <= free:
            return ""
        kept = f", {self.floor_bytes / 1e9:.2f} GB of that is kept free" if self.floor_bytes else ""
        return f"{needed / 1e9:.2f} GB needed on the disk, {free / 1e9:.2f} GB free{kept}"
